"""Rules for tool calls, by name and arguments, and their matchers."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from itertools import chain
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from evald.chat import ToolCall
from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import Result
from evald.strict_json import TooLarge
from evald_server.untrusted import shorten

from .json_values import MISSING, CheckTime, Path, equal, lookup, parse_place, shown
from .results import MAX_CHECKS, Amount, joined, no_answer

_ArgsMode = Literal["exact", "ignore", "subset", "superset", "partial"]


def _args_match(value: Any) -> Any:
    """Validate both forms, with one error message for both."""
    if isinstance(value, list) and all(isinstance(path, str) for path in value):
        for path in value:
            parse_place(path)
    elif value not in get_args(_ArgsMode):
        modes = ", ".join(get_args(_ArgsMode))
        raise ValueError(f"got {shown(value)}, wanted one of {modes}, or a list of dotted paths")
    return value


ArgsMatch = Annotated[
    _ArgsMode | list[str], BeforeValidator(_args_match, json_schema_input_type=_ArgsMode | list[str])
]
"""The comparison of arguments: a mode, or a list of dotted paths. See ARGS_MATCH_DESCRIPTION."""

ARGS_MATCH_DESCRIPTION: Final = (
    "How the arguments of a call are compared with the expected ones. exact: the same keys with "
    "equal values. ignore: they are not compared. superset: the call has all expected arguments, and "
    "may have more. subset: the call has no argument that is not expected. partial: like superset, "
    "also within nested objects. A list of dotted paths: only the values at these paths are "
    "compared; each must be equal, or missing on both sides."
)

CallScope = Annotated[
    Literal["conversation", "turn"],
    Field(description="Which calls count. conversation: all calls so far. turn: the calls of this turn."),
]


_UNREADABLE: Final = object()

MAX_EXPECTED: Final = 1000
"""Maximum number of expected tools, or calls, of one evaluator."""

# Maximum length of tool names for patterns.
_MAX_NAME: Final = 1000


def calls_in(ctx: EvaluatorContext, scope: CallScope) -> list[ToolCall]:
    """Return the tool calls in the scope."""
    return ctx.turn_tool_calls if scope == "turn" else ctx.tool_calls


def nobody_to_call(ctx: EvaluatorContext, scope: CallScope, calls: Sequence[ToolCall]) -> Result | None:
    """Return a failure if the agent said nothing in the scope, else None.

    Without an answer, the absence of calls proves nothing.
    """
    if calls or ctx.agent_spoke(scope):
        return None
    return no_answer(ctx)


def joined_names(calls: Sequence[ToolCall]) -> str:
    """Return the names of the first calls and the number of the others, as text."""
    return joined(calls, lambda call: shorten(call.name))


def call_evidence(calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return the number of calls and the names of the first ones, as metadata."""
    return {"toolCallCount": len(calls), "toolNames": [shorten(call.name) for call in calls[:MAX_CHECKS]]}


class Mismatch(NamedTuple):
    """The first argument that differs. name: "" for all arguments. got, wanted: MISSING if absent."""

    name: str
    got: Any
    wanted: Any

    @property
    def unreadable(self) -> bool:
        """Whether one side is not JSON, so that a match is neither proven nor excluded."""
        return self.got is _UNREADABLE or self.wanted is _UNREADABLE

    def __str__(self) -> str:
        if self.got is _UNREADABLE:
            return "its arguments are not JSON"
        if self.wanted is _UNREADABLE:
            return "the expected arguments are not JSON"
        name = shorten(self.name) or "arguments"
        if self.got is MISSING:
            return f"{name}: missing, expected {shown(self.wanted)}"
        if self.wanted is MISSING:
            return f"{name}: got {shown(self.got)}, expected nothing"
        return f"{name}: got {shown(self.got)}, expected {shown(self.wanted)}"


class Arguments:
    """Expected arguments, prepared for comparison with the arguments of calls."""

    __slots__ = ("_defaults", "_ignored", "_mode", "_paths", "_tolerance", "_wanted")

    def __init__(
        self,
        wanted: Any,
        mode: ArgsMatch,
        tolerance: float = 0,
        defaults: Mapping[str, Any] | None = None,
        ignore: Sequence[str] = (),
    ) -> None:
        self._paths: list[tuple[str, Path]] | None = None
        if isinstance(mode, list):
            self._paths = [(text, parse_place(text)) for text in mode]
        self._mode = mode
        self._tolerance = tolerance
        self._defaults = defaults or {}
        self._ignored = re.compile("|".join(map(translate, ignore))) if ignore else None
        self._wanted = self._strip(wanted)

    @classmethod
    def of_call(cls, call: ToolCall, mode: ArgsMatch, tolerance: float) -> "Arguments | None":
        """Return the arguments of an expected call, None if they are ignored."""
        if mode == "ignore":
            return None
        try:
            return cls(call.args, mode, tolerance)
        except ValueError:
            return cls(_UNREADABLE, "exact")

    @property
    def unreadable(self) -> bool:
        """Whether the expected arguments are not JSON."""
        return self._wanted is _UNREADABLE

    def mismatch(self, call: ToolCall, check: CheckTime) -> Mismatch | None:
        """Return the mismatch of the call's arguments, None if they match."""
        try:
            got = self._strip(call.read_args(check))
        except ValueError:
            return Mismatch("", _UNREADABLE, self._wanted)
        wanted, tolerance = self._wanted, self._tolerance
        if self._paths is not None:
            for text, path in self._paths:
                mine, known = lookup(got, path), lookup(wanted, path)
                if not equal(mine, known, tolerance, check):  # MISSING equals itself alone
                    return Mismatch(text, mine, known)
            return None
        if not isinstance(got, dict) or not isinstance(wanted, dict):
            return None if equal(got, wanted, tolerance, check) else Mismatch("", got, wanted)
        return self._compare(got, wanted, check)

    def _compare(self, got: dict[str, Any], wanted: dict[str, Any], check: CheckTime) -> Mismatch | None:
        mode, tolerance = self._mode, self._tolerance
        partial = mode == "partial"
        if mode != "subset":
            for name, value in wanted.items():
                if name not in got or not equal(got[name], value, tolerance, check, partial=partial):
                    return Mismatch(name, got.get(name, MISSING), value)
        if mode in {"exact", "subset"}:
            for name, value in got.items():
                if name in wanted:
                    if mode == "subset" and not equal(value, wanted[name], tolerance, check):
                        return Mismatch(name, value, wanted[name])
                elif name not in self._defaults or not equal(value, self._defaults[name], tolerance, check):
                    return Mismatch(name, value, MISSING)
        return None

    def _strip(self, args: Any) -> Any:
        if self._ignored is None or not isinstance(args, dict):
            return args
        return {name: value for name, value in args.items() if not self._ignored.match(name)}


def _allow_tool(schema: dict[str, Any]) -> None:
    schema["properties"]["tool"] = {"type": "string", "description": "Alias of name."}


class CallRule(BaseModel):
    """Base of the rules for one tool call in configs."""

    model_config = ConfigDict(**{**Evaluator.model_config, "json_schema_extra": _allow_tool})

    name: str | None = Field(None, description="Name of the tool; the key tool is an alias.")
    pattern: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None,
        description='Pattern for the name, in place of name: "search_*" matches every tool whose name starts with '
        '"search_".',
    )
    args: dict[str, Any] | Literal["any"] | None = Field(
        None, description='Expected arguments. Default, and with "any": arguments are not compared.'
    )
    args_match: ArgsMatch | None = Field(None, description=ARGS_MATCH_DESCRIPTION)
    tolerance: Amount | None = Field(None, description="Maximum difference between two numbers.")
    defaults: dict[str, Any] = Field(
        {}, description="Arguments that a call may omit, or pass with exactly this value."
    )
    ignore: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=100)] = Field(
        [], description='Arguments that are not compared; patterns such as "*_id" are allowed.'
    )

    @model_validator(mode="before")
    @classmethod
    def _name_for_tool(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "tool" not in given:
            return given
        if "name" in given:
            raise ValueError("got both name and tool, which are aliases; give one of them")
        return {("name" if key == "tool" else key): value for key, value in given.items()}

    @model_validator(mode="after")
    def _one_name(self) -> "CallRule":
        if (self.name is None) == (self.pattern is None):
            raise ValueError("give exactly one of name and pattern")
        return self

    def compile(self, mode: ArgsMatch, tolerance: float) -> "CallMatcher":
        """Return the matcher of this rule. mode, tolerance: the evaluator's defaults."""
        mode = self.args_match if self.args_match is not None else mode
        arguments = None
        if isinstance(self.args, dict) and mode != "ignore":
            allowed = self.tolerance if self.tolerance is not None else tolerance
            arguments = Arguments(self.args, mode, allowed, self.defaults, self.ignore)
        return CallMatcher(self.name, self.pattern, arguments)


class CallMatcher:
    """A compiled rule for one tool call.

    label: the tool's name, or the pattern. name: the exact name, or None.
    """

    __slots__ = ("_compiled", "_pattern", "arguments", "label", "max_duration_ms", "name")

    def __init__(
        self,
        name: str | None,
        pattern: str | None,
        arguments: Arguments | None,
        max_duration_ms: float | None = None,
    ) -> None:
        self.name = name
        self.label = shorten(name if name is not None else pattern or "")
        self.arguments = arguments
        self.max_duration_ms = max_duration_ms
        self._pattern = pattern if name is None else None
        self._compiled: re.Pattern[str] | None = None

    def names(self, tool: str) -> bool:
        """Return whether the rule applies to this tool. Raises TooLarge if the name is too long for patterns."""
        if self._pattern is None:
            return tool == self.name
        if len(tool) > _MAX_NAME:
            raise TooLarge(
                f"a tool's name has {len(tool)} characters; a pattern can match names of at most {_MAX_NAME}"
            )
        if self._compiled is None:
            # Compiled on first use, where the time is checked, because 1,000 patterns take 0.1 s.
            self._compiled = re.compile(translate(self._pattern))
        return self._compiled.match(tool) is not None

    def mismatch(self, call: ToolCall, check: CheckTime) -> Mismatch | None:
        """Return the mismatch of the arguments of a call of this tool, None if they match."""
        return None if self.arguments is None else self.arguments.mismatch(call, check)

    def in_time(self, call: ToolCall) -> bool | None:
        """Return whether the call was fast enough, None if its duration is unknown."""
        if self.max_duration_ms is None:
            return True
        taken = call.duration_ms
        return None if taken is None else taken <= self.max_duration_ms


class CallIndex:
    """An index of tool calls by tool name.

    names: the positions of each tool's calls, from 0, by tool name.
    """

    __slots__ = ("calls", "names")

    def __init__(self, calls: Sequence[ToolCall], check: CheckTime) -> None:
        self.calls = calls
        self.names: dict[str, list[int]] = {}
        for position, call in enumerate(calls):
            self.names.setdefault(call.name, []).append(position)
            if not position & 1023:
                check()

    @classmethod
    def of(cls, ctx: EvaluatorContext, scope: CallScope) -> "CallIndex":
        """Return the index of the calls in the scope, shared by all evaluators of the turn."""
        return ctx.once(("call-index", scope), lambda: cls(calls_in(ctx, scope), ctx.check_time))

    def positions(self, rule: CallMatcher, check: CheckTime) -> Sequence[int]:
        """Return the positions of the calls of the rule's tool, in order."""
        if rule.name is not None:
            return self.names.get(rule.name, ())
        found = []
        check()
        for count, (name, positions) in enumerate(self.names.items()):
            if rule.names(name):
                found.append(positions)
            if not count & 63:
                check()
        return found[0] if len(found) == 1 else sorted(chain.from_iterable(found))
