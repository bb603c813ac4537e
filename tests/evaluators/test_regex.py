"""Regular expressions mean what they mean in JavaScript, and none can hold up the server."""

import asyncio
import random
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald.result import Result, Verdict
from evald_server.evaluators import regex
from evald_server.evaluators.js_regex import to_re2
from evald_server.evaluators.regex import INLINE_WORK, MAX_WORK, Regex

from .contexts import answered, awaited, context, run

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR


@pytest.mark.parametrize(
    ("config", "answer", "verdict", "reason"),
    [
        ({"pattern": r"BK-\d{5}"}, "ref BK-12345", PASSED, r"Response matches pattern: BK-\d{5}"),
        ({"pattern": r"BK-\d{5}"}, "ref BK-123", FAILED, r"Response does not match pattern: BK-\d{5}"),
        (
            {"pattern": "sorry", "flags": "i", "mustMatch": False},
            "Sorry",
            FAILED,
            "Response matches forbidden pattern: sorry",
        ),
        (
            {"pattern": "sorry", "mustMatch": False},
            "Sorry",
            PASSED,
            "Response does not match forbidden pattern: sorry",
        ),
    ],
    ids=["match", "no-match", "forbidden", "case"],
)
def test_the_reason_says_the_pattern(
    config: dict[str, Any], answer: str, verdict: Verdict, reason: str
) -> None:
    result = run(Regex, config, answered(answer))
    assert (result.verdict, result.reason) == (verdict, reason)
    assert result.score == (1 if verdict is PASSED else 0)


# pattern, flags, a text that matches, a text that does not. Node.js 20 agrees, but for modifiers, which it does not
# know yet.
JAVASCRIPT = [
    pytest.param(r"^\d+$", "", "123", "123\n", id="dollar-is-the-very-end"),
    pytest.param(r"^\d$", "", "5", "\u0665", id="d-is-ascii"),
    pytest.param(r"^\w+$", "", "a_9", "é", id="w-is-ascii"),
    pytest.param(r"\bcat\b", "", "a cat.", "cats", id="b"),
    pytest.param(r"\bé", "", "aé", "é", id="b-is-ascii"),
    pytest.param(r"\Bat", "", "cat", "at", id="B"),
    pytest.param(r"^\s$", "", "\ufeff", "\x1f", id="s-knows-the-byte-order-mark"),
    pytest.param(r"^\s$", "", "\v", "\x85", id="s-knows-the-vertical-tab"),
    pytest.param(r"^\S$", "", "\x85", "\u3000", id="S"),
    pytest.param(r"^[\S]$", "", "x", "\u2029", id="S-in-a-class"),
    pytest.param(r"^[^\S\n]$", "", "\u00a0", "\n", id="S-in-a-negated-class"),
    pytest.param("^.$", "", "\x85", "\u2028", id="dot-stops-at-line-ends"),
    pytest.param("^.$", "", "x", "\r", id="dot-stops-at-carriage-return"),
    pytest.param("^.$", "s", "\u2028", "", id="dot-all"),
    pytest.param("^b$", "", "b", "a\nb", id="no-m"),
    pytest.param("^b$", "m", "a\nb\nc", "ab", id="m"),
    pytest.param("^b$", "m", "a\r\nb\r\nc", "a\r\n b", id="m-knows-crlf"),
    pytest.param("(^|,)b($|;)", "m", "a\u2028b\u2029", "ab", id="m-in-alternatives"),
    pytest.param("^$", "m", "a\n\nb", "a\nb", id="m-empty-line"),
    pytest.param("a$\nb", "m", "a\nb", "ab", id="m-in-the-middle"),
    pytest.param("HELLO", "i", "hello", "help", id="i"),
    pytest.param("É", "i", "é", "e", id="i-beyond-ascii"),
    pytest.param("[a-z]{3}", "i", "ABC", "123", id="i-in-a-class"),
    pytest.param(r"^\w$", "i", "k", "\u017f", id="i-keeps-w-ascii"),
    pytest.param(r"^\w$", "iu", "\u017f", "é", id="iu-folds-w"),
    pytest.param("a", "g", "a", "b", id="g-is-ignored"),
    pytest.param(r"\x41\u00e9\t\0\cJ", "", "Aé\t\0\n", "A", id="escapes"),
    pytest.param(r"\u{1F600}", "u", "😀", "u", id="code-point"),
    pytest.param(r"\ud83d\ude00", "", "😀", "\ufffd", id="surrogate-pair"),
    pytest.param(r"^\p{Lu}\P{L}$", "u", "É1", "é1", id="property"),
    pytest.param(r"\p{Script=Greek}", "u", "\u03b1", "a", id="script"),
    pytest.param(r"a\/b\-c", "", "a/b-c", "ab", id="needless-escapes"),
    pytest.param("(?<year>[0-9]{4})-(?:0[1-9])", "", "2024-05", "2024-00", id="groups"),
    pytest.param("^(?:ab|a|)$", "", "", "b", id="empty-alternative"),
    pytest.param("^a+?b*?$", "", "aab", "ba", id="lazy"),
    pytest.param("^a{2,3}b{2}c{1,}$", "", "aaabbc", "abbc", id="counted"),
    pytest.param("^a{,2}$", "", "a{,2}", "aa", id="no-quantifier"),
    pytest.param("^{x}]$", "", "{x}]", "x", id="lone-brackets"),
    pytest.param("[^]", "", "\n", "", id="anything"),
    pytest.param("a|[]", "", "a", "b", id="nothing"),
    pytest.param(r"^[\b]$", "", "\b", "b", id="backspace"),
    pytest.param(r"^[a\-z]$", "", "-", "b", id="escaped-hyphen"),
    pytest.param(r"^[\w-.]$", "", "-", "+", id="hyphen-after-a-set"),
    pytest.param("^[a-]$", "", "-", "b", id="hyphen-at-the-end"),
    pytest.param("^[^^]$", "", "a", "^", id="caret"),
    pytest.param("^[[:a]$", "", "[", "]", id="no-posix-classes"),
    pytest.param("^[.*$|(]$", "", "*", "a", id="syntax-in-a-class"),
    pytest.param("(?i:A)b", "", "ab", "aB", id="modifier-on"),
    pytest.param("a(?-i:b)", "i", "Ab", "AB", id="modifier-off"),
    pytest.param("^(?s:.).$", "", "\nx", "x\n", id="modifier-ends-with-its-group"),
    pytest.param("", "", "anything", None, id="empty"),
]


@pytest.mark.parametrize(("pattern", "flags", "matching", "other"), JAVASCRIPT)
def test_a_pattern_means_what_it_means_in_javascript(
    pattern: str, flags: str, matching: str, other: str | None
) -> None:
    config = {"pattern": pattern, "flags": flags}
    assert run(Regex, config, answered(matching)).verdict is PASSED
    if other is not None:
        assert run(Regex, config, answered(other)).verdict is FAILED


@pytest.mark.parametrize(
    ("pattern", "flags", "problem"),
    [
        ("BK-[0-9", "", "missing ']' for the class at 3 at position 7 in 'BK-[0-9'"),
        ("x(a", "", "missing ')' for the group at 1 at position 3"),
        ("a)", "", "unmatched ')' at position 1"),
        ("a**", "", "nothing to repeat at position 2"),
        ("+a", "", "nothing to repeat at position 0"),
        ("{2}", "", "nothing to repeat at position 0"),
        ("^*", "", "nothing to repeat at position 1"),
        (r"\b{2}", "", "nothing to repeat at position 2"),
        ("ab{2,1}", "", "numbers out of order in the quantifier at position 2"),
        ("[b-a]", "", "range out of order in the class at position 1"),
        ("a\\", "", "backslash at the end at position 1"),
        ("a(?=b)", "", "lookahead, which RE2 (linear time) cannot express, at position 1"),
        ("a(?!b)", "", "lookahead"),
        ("(?<=a)b", "", "lookbehind, which RE2 (linear time) cannot express, at position 0"),
        ("(?<!a)b", "", "lookbehind"),
        (r"(a)\1", "", "backreference, which RE2 (linear time) cannot express, at position 3"),
        (r"(?<x>a)\k<x>", "", "named backreference"),
        ("a{1001}", "", "more than 1000 repetitions (RE2's limit) at position 1"),
        ("(?:a{30}){1,999}", "", "RE2 refuses the pattern: invalid repetition size"),
        (r"\p{L}{900}", "u", "RE2 refuses the pattern: pattern too large"),
        ("(?i)a", "", "inline flags are not JavaScript, use the config key 'flags'; at position 0"),
        ("(?P<x>a)", "", "'(?P' is not JavaScript"),
        ("(?>a)", "", "unknown kind of group at position 0"),
        (r"\Aa", "", r"unknown escape '\A' at position 0"),
        (r"a\07", "", "octal escape"),
        (r"\u{61}", "", r"'\u{...}' needs the flag u at position 0"),
        (r"\u{110000}", "u", r"'\u' without a code point at position 0"),
        (r"\ud83d", "", "half of a surrogate pair"),
        (r"\p{Emoji}", "u", "unknown property"),
        (r"\-", "u", r"needless escape '\-', which the flag u does not allow, at position 0"),
        ("a{", "u", "incomplete quantifier at position 1"),
        ("]", "u", "lone ']', which the flag u does not allow"),
        (r"[\w-z]", "u", "a set of characters cannot bound a range at position 1"),
        ("(" * 101 + ")" * 101, "", "groups nested deeper than 100 at position 101"),
        ("é" * 600, "", "1200 bytes, at most 1024"),
    ],
)
def test_what_is_not_valid_or_not_linear_is_refused_with_its_position(
    pattern: str, flags: str, problem: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        Regex.definition().compile({"pattern": pattern, "flags": flags})
    (found,) = refused.value.problems
    assert found.path == "/pattern"
    assert problem in found.message


@pytest.mark.parametrize(
    ("flags", "problem"),
    [("y", "unknown flag 'y'"), ("ix", "unknown flag 'x'"), ("ii", "flag 'i' given twice")],
)
def test_a_flag_that_javascript_or_evald_does_not_know_is_refused(flags: str, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=f"config/flags: {problem}"):
        Regex.definition().compile({"pattern": "a", "flags": flags})


def test_a_pattern_over_1_kib_is_refused() -> None:
    Regex.definition().compile({"pattern": "x" * 1024})
    with pytest.raises(InvalidConfig, match=r"config/pattern: .*at most 1024"):
        Regex.definition().compile({"pattern": "x" * 1025})


@pytest.mark.parametrize("must_match", [True, False])
def test_without_an_assistant_message_it_fails(must_match: bool) -> None:
    result = run(Regex, {"pattern": "a", "mustMatch": must_match}, context())
    assert (result.verdict, result.score, result.reason) == (FAILED, 0, "No assistant message found")


def test_text_blocks_are_joined_with_nothing_between() -> None:
    blocks = [{"type": "text", "text": "hello "}, {"type": "image"}, {"type": "text", "text": "world"}]
    ctx = context([{"role": "assistant", "content": blocks}])
    assert run(Regex, {"pattern": "^hello world$"}, ctx).verdict is PASSED


def test_the_config_says_which_message_is_the_answer() -> None:
    ctx = context([{"role": "assistant", "content": text} for text in ("first", "second")])
    for which, pattern in (("last", "^second$"), ("first", "^first$"), ("all", "^first\nsecond$")):
        assert run(Regex, {"pattern": pattern, "message": which}, ctx).verdict is PASSED


def _of_work(work: int) -> tuple[Any, str]:
    """A compiled evaluator that is slow for its size, and a text that makes it work this much."""
    evaluate = Regex.definition().compile({"pattern": "(a|b)*a(a|b){20}c"})
    size = evaluate.__self__._program_size  # type: ignore[attr-defined]
    rng = random.Random(3)
    return evaluate, "".join(rng.choices("ab", k=work // size))


def test_a_cheap_search_answers_at_once_and_a_costly_one_isawaited() -> None:
    evaluate, text = _of_work(INLINE_WORK)
    assert isinstance(evaluate(answered(text)), Result)
    outcome = evaluate(answered(text * 2))
    assert isinstance(outcome, Awaitable)
    assert asyncio.run(awaited(outcome)).verdict is FAILED


def test_a_costly_search_leaves_the_event_loop_free() -> None:
    evaluate, text = _of_work(MAX_WORK)

    async def beside() -> int:
        search = asyncio.ensure_future(evaluate(answered(text)))
        turns = 0
        while not search.done():
            await asyncio.sleep(0)
            turns += 1
        assert (await search).verdict is FAILED
        return turns

    # The search takes 50 ms, a turn of the loop 20 us; one that blocks the loop leaves it 2 turns.
    assert asyncio.run(beside()) > 20


def test_a_search_over_the_limit_is_an_error_that_says_so() -> None:
    evaluate, text = _of_work(MAX_WORK)
    result = evaluate(answered(text * 2))
    assert (result.verdict, result.error.code) == (ERROR, "INPUT_TOO_LARGE")
    assert "at most 10000000" in result.reason


def _hostile() -> Iterator[tuple[str, str]]:
    """200 patterns with the alphabet that hurts them: nested and overlapping repetition, long counted
    classes, many alternatives, Unicode classes."""
    for step in range(20):
        n, few = 10 + 51 * step, 10 + step
        yield f"(a|b)*a(a|b){{{n}}}c", "ab"
        yield f"(a?){{{n}}}a{{{n}}}b", "a"
        yield f"((a{{1,{few}}}){{1,{few}}})b", "a"
        yield f"[ab]{{{n}}}c", "ab"
        yield f"(.{{1,{n}}}a){{1,{1000 // n}}}$", "ab"
        yield f"(.|\\n){{{n}}}x", "é漢"
        yield "|".join(f"{chr(97 + i % 26)}.{{{i + few}}}z" for i in range(20)), "abcdefghij"
        yield "(a*)*" * few + "b", "a"
        yield f"\\p{{L}}{{{few}}}!", "aé"
        yield f"^(([a-z])+.)+[A-Z]([a-z]{{{few}}})+$", "a"


def test_200_hostile_patterns_end_in_time_and_within_memory() -> None:
    rng = random.Random(11)
    before = _resident_mib()
    slowest = 0.0
    patterns = list(_hostile())
    assert len(set(patterns)) == 200
    kept = []
    for pattern, alphabet in patterns:
        start = time.process_time()
        try:
            evaluate = Regex.definition().compile({"pattern": pattern, "flags": "u"})
        except InvalidConfig:
            slowest = max(slowest, time.process_time() - start)
            continue
        kept.append(evaluate)
        largest = MAX_WORK // evaluate.__self__._program_size  # type: ignore[attr-defined]
        text = "".join(rng.choices(alphabet, k=10_000)).encode() * (largest // 10_000 + 1)
        ctx = answered(text[:largest].decode(errors="ignore"))
        start = time.process_time()
        result = asyncio.run(awaited(evaluate(ctx)))
        slowest = max(slowest, time.process_time() - start)
        assert result.verdict is not ERROR
    assert len(kept) > 150
    # Time on the processor, so that a busy machine does not count.
    assert slowest < 0.3
    assert _resident_mib() - before < 100


def _resident_mib() -> float:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text().split()[1]) * 4096 / 2**20


def test_a_refused_pattern_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidConfig):
        Regex.definition().compile({"pattern": r"\p{L}{900}", "flags": "u"})
    assert capfd.readouterr().err == ""


def test_lines_of_a_multiline_pattern_are_documented_where_re2_falls_short() -> None:
    """In the middle of a pattern `^` and `$` know \\n only; JavaScript would match here."""
    assert run(Regex, {"pattern": r"a$\s+b", "flags": "m"}, answered("a\n b")).verdict is PASSED
    assert run(Regex, {"pattern": r"a$\s+b", "flags": "m"}, answered("a\r b")).verdict is FAILED


def test_what_re2_gets_is_ascii_with_every_symbol_escaped() -> None:
    assert to_re2("a.é/[b-]") == r"(?:a[^\n\r\x{2028}\x{2029}]\x{E9}\x{2F}[b\x{2D}])"


def test_costly_searches_leave_one_core_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (8, 7), (None, 1)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert regex._threads.__wrapped__()._max_workers == threads
