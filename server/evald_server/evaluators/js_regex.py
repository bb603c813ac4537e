r"""JavaScript's regular expressions in the syntax of RE2.

Covers ECMAScript 2025 with the flags i, m, s and u, and what browsers allow
without u besides (Annex B: a lone brace or bracket, an escaped hyphen). RE2
works in linear time and therefore knows neither lookaround nor backreferences:
those are refused. Groups do not capture: only whether a text matches counts.

What differs from JavaScript:
- Text is matched by code point even without u: `^.$` matches an emoji.
- Ignoring case is Unicode's even without u: /k/i matches the Kelvin sign.
- A backslash before a letter without meaning, which JavaScript takes for the
  letter itself, is refused: `\A`, `\Z` and `\h` mean something elsewhere.
- With m, a `^` that begins the pattern and a `$` that ends it know all four
  line ends (\n, \r, U+2028, U+2029). In the middle they know \n only.
- `\B` with nothing beside it also holds inside a character of several bytes.
"""

import re
from typing import NamedTuple

FLAGS = "gimsu"
# RE2's own limit; JavaScript has none.
MAX_REPEAT = 1000
# Far below Python's recursion limit of 1,000 frames at 3 frames a level.
MAX_DEPTH = 100

_LINE_ENDS = r"\n\r\x{2028}\x{2029}"
_SPACES = r"\t-\r\x{20}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
_NO_SPACES = (
    r"\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}"
    r"\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{FEFE}\x{FF00}-\x{10FFFF}"
)
_SETS = {"d": r"\d", "D": r"\D", "w": r"\w", "W": r"\W", "s": _SPACES, "S": _NO_SPACES}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_ANY = r"\x{0}-\x{10FFFF}"

_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\}")
_GROUP_NAME = re.compile(r"\?<(?!\d)[\w$]+>")
_MODIFIERS = re.compile(r"\?([ims]*)(?:-([ims]*))?:")
_INLINE_FLAGS = re.compile(r"\?[a-zA-Z-]+\)")
_PROPERTY = re.compile(r"\{(?:(?:General_Category|gc)=)?([A-Z][a-z]?)\}|\{(?:Script|sc)=([A-Za-z_]+)\}")
_HEX2 = re.compile(r"[0-9A-Fa-f]{2}")
_HEX4 = re.compile(r"[0-9A-Fa-f]{4}")
_HEX_BRACED = re.compile(r"\{([0-9A-Fa-f]+)\}")
_LOW_SURROGATE = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})")


class _Group(NamedTuple):
    opening: str
    branches: "list[list[_Node]]"
    quantifier: str


class _LineAnchor(NamedTuple):
    inner: str
    outer: str


_Node = str | _Group | _LineAnchor

# At an end of the pattern an anchor may take the line end with it: nothing else of the pattern needs it.
_LINE_START = _LineAnchor("(?m:^)", rf"(?:\A|[{_LINE_ENDS}])")
_LINE_END = _LineAnchor("(?m:$)", rf"(?:\z|[{_LINE_ENDS}])")


def to_re2(pattern: str, flags: str = "") -> str:
    """The same pattern for RE2, flags included.

    Raises ValueError with the problem and its position, counted from 0, when
    it is not valid JavaScript or RE2 cannot express it.
    """
    return _Parser(pattern, flags).parse()


class _Parser:
    def __init__(self, pattern: str, flags: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.unicode = "u" in flags
        self.ignore_case = "i" in flags
        self.multiline = "m" in flags
        self.dot_all = "s" in flags

    def parse(self) -> str:
        opening = "(?i:" if self.ignore_case else "(?:"
        branches = self.branches(0)
        if self.at < len(self.pattern):
            raise self.problem("unmatched ')'")
        return _render(_Group(opening, branches, ""), starts=True, ends=True)

    def problem(self, what: str, at: int | None = None) -> ValueError:
        shown = self.pattern if len(self.pattern) <= 100 else f"{self.pattern[:100]}..."
        return ValueError(f"{what} at position {self.at if at is None else at} in {shown!r}")

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self, form: re.Pattern[str]) -> re.Match[str] | None:
        found = form.match(self.pattern, self.at)
        if found:
            self.at = found.end()
        return found

    def branches(self, depth: int) -> list[list[_Node]]:
        if depth > MAX_DEPTH:
            raise self.problem(f"groups nested deeper than {MAX_DEPTH}")
        branches: list[list[_Node]] = [[]]
        while (char := self.peek()) and char != ")":
            if char == "|":
                self.at += 1
                branches.append([])
            else:
                branches[-1].append(self.term(char, depth))
        return branches

    def term(self, char: str, depth: int) -> _Node:
        if char in "^$" or self.pattern.startswith(("\\b", "\\B"), self.at):
            return self.assertion(char)
        if char == "(":
            return self.group(depth)
        if self.at_quantifier():
            raise self.problem("nothing to repeat")
        if char in "{}]" and self.unicode:
            raise self.problem(f"lone {char!r}, which the flag u does not allow; write '\\{char}'")
        start = self.at
        self.at += 1
        if char == "[":
            atom = self.char_class(start)
        elif char == ".":
            atom = f"[{_ANY}]" if self.dot_all else f"[^{_LINE_ENDS}]"
        elif char == "\\":
            atom = self.escape(start)
        else:
            atom = self.literal(ord(char), start)
        return atom + self.quantifier()

    def at_quantifier(self) -> bool:
        return bool(_QUANTIFIER.match(self.pattern, self.at))

    def assertion(self, char: str) -> _Node:
        node: _Node
        if char == "\\":
            node = self.pattern[self.at : self.at + 2]
            self.at += 2
        else:
            self.at += 1
            if self.multiline:
                node = _LINE_START if char == "^" else _LINE_END
            else:
                node = r"\A" if char == "^" else r"\z"
        if self.at_quantifier():
            raise self.problem("nothing to repeat")
        return node

    def quantifier(self) -> str:
        start = self.at
        found = self.take(_QUANTIFIER)
        if not found:
            if self.unicode and self.peek() == "{":
                raise self.problem("incomplete quantifier")
            return ""
        # A lazy quantifier finds the same texts.
        if self.peek() == "?":
            self.at += 1
        least, comma, most = found.groups()
        if least is None:
            return found.group()
        low, high = int(least), int(most or least)
        if high < low:
            raise self.problem("numbers out of order in the quantifier", start)
        if high > MAX_REPEAT:
            raise self.problem(f"more than {MAX_REPEAT} repetitions (RE2's limit)", start)
        return f"{{{low}{comma or ''}{high if most else ''}}}"

    def group(self, depth: int) -> _Node:
        start = self.at
        self.at += 1
        outer = self.ignore_case, self.multiline, self.dot_all
        if self.peek() == "?":
            self.group_kind(start)
        opening = "(?:" if self.ignore_case == outer[0] else "(?i:" if self.ignore_case else "(?-i:"
        branches = self.branches(depth + 1)
        if self.peek() != ")":
            raise self.problem(f"missing ')' for the group at {start}")
        self.at += 1
        self.ignore_case, self.multiline, self.dot_all = outer
        return _Group(opening, branches, self.quantifier())

    def group_kind(self, start: int) -> None:
        """Read what follows the opening parenthesis, and apply its modifiers."""
        rest = self.pattern[self.at : self.at + 3]
        if rest.startswith(("?=", "?!")):
            raise self.problem("lookahead, which RE2 (linear time) cannot express,", start)
        if rest.startswith(("?<=", "?<!")):
            raise self.problem("lookbehind, which RE2 (linear time) cannot express,", start)
        if self.take(_GROUP_NAME):
            return
        if rest.startswith("?P"):
            raise self.problem("'(?P' is not JavaScript, a named group is '(?<name>...)',", start)
        if modifiers := self.take(_MODIFIERS):
            on, off = modifiers[1], modifiers[2] or ""
            self.ignore_case = (self.ignore_case or "i" in on) and "i" not in off
            self.multiline = (self.multiline or "m" in on) and "m" not in off
            self.dot_all = (self.dot_all or "s" in on) and "s" not in off
        elif _INLINE_FLAGS.match(self.pattern, self.at):
            raise self.problem("inline flags are not JavaScript, use the config key 'flags';", start)
        else:
            raise self.problem("unknown kind of group", start)

    def literal(self, code: int, at: int) -> str:
        if 0xD800 <= code <= 0xDFFF:
            raise self.problem("half of a surrogate pair; text is matched by code point,", at)
        return chr(code) if code < 128 and chr(code).isalnum() else f"\\x{{{code:X}}}"

    def escape(self, start: int) -> str:
        """Read an escape outside of a class, after its backslash."""
        char = self.peek()
        if char and char in "wW" and self.ignore_case and not self.unicode:
            self.at += 1
            return f"(?-i:\\{char})"  # RE2 would add the long s and the Kelvin sign, as only u does
        if (found := self.escaped_set(char)) is not None:
            return f"[{found}]"
        if char and char in "123456789":
            raise self.problem("backreference, which RE2 (linear time) cannot express,", start)
        if char == "k":
            raise self.problem("named backreference, which RE2 (linear time) cannot express,", start)
        return self.literal(self.escaped_character(start), start)

    def escaped_set(self, char: str) -> str | None:
        if char in _SETS:
            self.at += 1
            return _SETS[char]
        if not char or char not in "pP" or not self.unicode:
            return None
        start = self.at - 1
        self.at += 1
        found = self.take(_PROPERTY)
        if not found:
            raise self.problem(
                "unknown property, wanted a general category (\\p{Lu}) or a script (\\p{Script=Greek}),",
                start,
            )
        return f"\\{char}{{{found[1] or found[2]}}}"

    def escaped_character(self, start: int) -> int:
        """Code point of an escape that stands for one character."""
        char = self.peek()
        if not char:
            raise self.problem("backslash at the end", start)
        self.at += 1
        if char in _CONTROLS:
            return _CONTROLS[char]
        following = self.peek()
        if char == "0":
            if following and following in "0123456789":
                raise self.problem("octal escape, write '\\x' and two hex digits,", start)
            return 0
        if char == "c" and following.isascii() and following.isalpha():
            self.at += 1
            return ord(following) % 32
        if char == "x" and (found := self.take(_HEX2)):
            return int(found[0], 16)
        if char == "u":
            return self.escaped_code_point(start)
        if char.isalnum() and char.isascii():
            raise self.problem(f"unknown escape '\\{char}'", start)
        if self.unicode and char not in _SYNTAX:
            raise self.problem(f"needless escape '\\{char}', which the flag u does not allow,", start)
        return ord(char)

    def escaped_code_point(self, start: int) -> int:
        if found := self.take(_HEX4):
            code = int(found[0], 16)
            if 0xD800 <= code <= 0xDBFF and (low := self.take(_LOW_SURROGATE)):
                code = 0x10000 + (code - 0xD800) * 0x400 + (int(low[1], 16) - 0xDC00)
            return code
        if found := self.take(_HEX_BRACED):
            if not self.unicode:
                raise self.problem("'\\u{...}' needs the flag u", start)
            code = int(found[1], 16)
            if code <= 0x10FFFF:
                return code
        raise self.problem("'\\u' without a code point", start)

    def char_class(self, start: int) -> str:
        """Read a class after its opening bracket."""
        negated = self.peek() == "^"
        self.at += negated
        parts: list[str] = []
        while self.peek() != "]":
            low_at, low = self.at, self.class_atom(start)
            if self.peek() != "-" or self.pattern[self.at + 1 : self.at + 2] in {"]", ""}:
                parts.append(low if isinstance(low, str) else self.literal(low, low_at))
                continue
            self.at += 1
            high_at, high = self.at, self.class_atom(start)
            if isinstance(low, str) or isinstance(high, str):
                if self.unicode:
                    raise self.problem("a set of characters cannot bound a range", low_at)
                sides = [low, ord("-"), high]
                parts += [side if isinstance(side, str) else self.literal(side, low_at) for side in sides]
                continue
            if low > high:
                raise self.problem("range out of order in the class", low_at)
            parts.append(f"{self.literal(low, low_at)}-{self.literal(high, high_at)}")
        self.at += 1
        if not parts:
            return f"[{_ANY}]" if negated else f"[^{_ANY}]"
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def class_atom(self, class_start: int) -> int | str:
        """A code point, or a set in RE2's syntax."""
        start = self.at
        char = self.peek()
        if not char:
            raise self.problem(f"missing ']' for the class at {class_start}")
        self.at += 1
        if char != "\\":
            return ord(char)
        escaped = self.peek()
        if escaped == "b":
            self.at += 1
            return 8
        if escaped == "-":
            self.at += 1
            return ord("-")
        found = self.escaped_set(escaped)
        return self.escaped_character(start) if found is None else found


def _render(node: _Node, *, starts: bool, ends: bool) -> str:
    """starts, ends: nothing of the pattern stands before, after the node."""
    if isinstance(node, str):
        return node
    if isinstance(node, _LineAnchor):
        at_end = starts if node is _LINE_START else ends
        return node.outer if at_end else node.inner
    once = not node.quantifier
    branches = (
        "".join(
            _render(
                part,
                starts=starts and once and position == 0,
                ends=ends and once and position == len(branch) - 1,
            )
            for position, part in enumerate(branch)
        )
        for branch in node.branches
    )
    return f"{node.opening}{'|'.join(branches)}){node.quantifier}"
