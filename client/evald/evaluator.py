"""Define evaluators: as a class with typed fields, or as a plain function.

Both become an `EvaluatorDefinition`, the only form that servers and workers use.
"""

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from numbers import Real
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    NoReturn,
    Self,
    TypeAlias,
    TypedDict,
    Unpack,
)

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from .context import EvaluatorContext
from .contract import ContractViolation
from .fields import did_you_mean, schema_keys, shown
from .result import Kind, Metric, Result, Verdict, failed, measured, passed
from .strict_json import canonical_json

if TYPE_CHECKING:
    import jsonschema_rs
    from jsonschema_rs import Draft202012Validator

Outcome: TypeAlias = Result | bool | tuple[bool, str] | float | Mapping[str, Any]
"""The return value of a function evaluator: a Result; a bool (True means passed), optionally with a reason;
a measurement; or a mapping with `success`, and optionally `reason`, `value`, `score`, `metadata`."""

Evaluate: TypeAlias = Callable[[EvaluatorContext], Result | Awaitable[Result]]

Function: TypeAlias = Callable[[EvaluatorContext], Outcome | Awaitable[Outcome]]
"""An evaluator as a plain function, `async` or not."""

TYPE_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")


class ConfigProblem(NamedTuple):
    """One problem of a config. path: JSON Pointer into the config, "" for the whole config."""

    path: str
    message: str


class InvalidConfig(ValueError):
    """A config is invalid for its evaluator."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(f"config{p.path}: {p.message}" for p in self.problems))

    @classmethod
    def at(cls, path: str, message: str) -> "InvalidConfig":
        """Return the error of one problem. path: JSON Pointer."""
        return cls([ConfigProblem(path, message)])


class EvaluatorDefinition(NamedTuple):
    """An evaluator as servers and workers use it.

    compile: takes a config and returns the function that evaluates a turn with it. Raises InvalidConfig.
        Called once per plan, not per turn.
    config_schema: returns the text of the config's JSON Schema (2020-12). Only the catalogue calls it.
    aliases: other names of the type, each with the config keys that it implies.
    auto: the server runs it on every call.
    deterministic: the same turn and config always give the same result.
    final_turn_only: its result is meaningful only on the final turn.
    required_data: data that it needs beyond the messages, for example "last_invocation.token_usage".
    inline: it returns within a millisecond and never blocks, so the server may call it in its event loop.
        It returns no awaitable. Other evaluators run in a separate thread.
    type_by_config_key: if the config of a spec contains one of these keys, the spec means the mapped type.
    is_async: `compile` returns an `async` function, which can be cancelled.
    """

    type: str
    kind: Kind
    label: str
    description: str
    config_schema: Callable[[], str]
    compile: Callable[[Mapping[str, Any]], Evaluate]
    version: str = "1.0.0"
    aliases: Mapping[str, Mapping[str, Any]] = {}
    auto: bool = False
    deterministic: bool = True
    final_turn_only: bool = False
    metric: Metric | None = None
    required_data: tuple[str, ...] = ()
    inline: bool = False
    type_by_config_key: Mapping[str, str] = {}
    is_async: bool = False


class EvaluatorKeywords(TypedDict, total=False):
    """The keywords of a class evaluator, as the fields of `EvaluatorDefinition`."""

    type: str
    kind: Kind
    label: str
    version: str
    aliases: Mapping[str, Mapping[str, Any]]
    auto: bool
    deterministic: bool
    final_turn_only: bool
    metric: Metric | None
    required_data: tuple[str, ...]
    inline: bool
    type_by_config_key: Mapping[str, str]


def default_label(type_name: str) -> str:
    """Return the display name of a type, for example "Short Enough" for "acme.short-enough"."""
    return type_name.rpartition(".")[2].replace("-", " ").title()


CONFIG_MODEL: Final = ConfigDict(
    frozen=True,
    extra="forbid",
    strict=True,
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    ignored_types=(cached_property,),
    protected_namespaces=(),
    arbitrary_types_allowed=True,
    field_title_generator=lambda name, _: name.strip("_").replace("_", " ").capitalize(),
)
"""How pydantic reads a config: keys in camelCase or snake_case, unknown keys rejected, values not converted."""


class Evaluator(BaseModel):
    """Base class of class evaluators. The fields are the config.

    The class keywords describe the evaluator in the catalogue:

        class ShortEnough(evald.Evaluator, type="acme.short-enough", kind=evald.ASSERTION):
            max_words: int = 100

    Config keys are the field names in camelCase or snake_case. Unknown keys are rejected, and values are not
    converted: "3" is not a number. Instances are immutable. Put expensive preparation, such as compiling a
    pattern, into a `functools.cached_property` and access it in `prepare`.
    """

    model_config = CONFIG_MODEL

    # Set by the class keywords; a subclass inherits the others.
    type: ClassVar[str]
    kind: ClassVar[Kind]
    label: ClassVar[str] = ""
    version: ClassVar[str] = "1.0.0"
    aliases: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    auto: ClassVar[bool] = False
    deterministic: ClassVar[bool] = True
    final_turn_only: ClassVar[bool] = False
    metric: ClassVar[Metric | None] = None
    required_data: ClassVar[tuple[str, ...]] = ()
    inline: ClassVar[bool] = False
    type_by_config_key: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **keywords: Unpack[EvaluatorKeywords]) -> None:
        """Set the class attributes. Raises TypeError for an unknown keyword."""
        for name, value in keywords.items():
            if name not in EvaluatorKeywords.__annotations__:
                known = ", ".join(EvaluatorKeywords.__annotations__)
                raise TypeError(f"class {cls.__name__}: unknown keyword {name!r}; wanted one of {known}")
            setattr(cls, name, value)
        super().__init_subclass__()

    def evaluate(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        """Evaluate one turn and return its result. May be `async`."""
        raise NotImplementedError(f"class {type(self).__name__} has no method evaluate(self, ctx)")

    def prepare(self) -> None:
        """Prepare the evaluator, for example compile its patterns. Called once. Raises ValueError for a bad config."""

    def measures(self) -> Metric | None:
        """Return the unit and range of this instance's value. Override it if they depend on the config."""
        return type(self).metric

    @classmethod
    def definition(cls) -> EvaluatorDefinition:
        """Return the definition of this class. Raises ValueError for a malformed type name, and TypeError for none."""
        for name in ("type", "kind"):
            if not hasattr(cls, name):
                raise TypeError(
                    f"class {cls.__name__} has no {name}; wanted class {cls.__name__}(evald.Evaluator, "
                    'type="acme.my-check", kind=evald.ASSERTION)'
                )
        _check_type(cls.type)
        _check_kind(cls.type, cls.kind)
        is_async = inspect.iscoroutinefunction(cls.evaluate)
        keywords: dict[str, Any] = {name: getattr(cls, name) for name in EvaluatorKeywords.__annotations__}
        return EvaluatorDefinition(
            **keywords
            | {
                "label": cls.label or default_label(cls.type),
                "metric": cls.metric if cls.kind is Kind.ASSERTION else cls.metric or Metric(),
                "inline": cls.inline and not is_async,
            },
            description=inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " "),
            config_schema=lambda: _schema_text(json_schema(cls)),
            compile=cls._compile,
            is_async=is_async,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return a prepared instance with this config. Raises InvalidConfig with every problem."""
        try:
            evaluator = cls.model_validate(config)
        except ValidationError as problem:
            raise InvalidConfig(config_problems(problem, config, cls)) from None
        try:
            evaluator.prepare()
        except InvalidConfig:
            raise
        except ValueError as problem:
            raise InvalidConfig([ConfigProblem("", str(problem))]) from None
        return evaluator

    @classmethod
    def _compile(cls, config: Mapping[str, Any]) -> Evaluate:
        return cls.from_config(config).evaluate


def effective_config(evaluator: Evaluator) -> str:
    """Return the config as canonical JSON: sorted keys in camelCase, with all defaults, 5.0 as 5."""
    text = BaseModel.model_dump_json(evaluator, by_alias=True, warnings=False)
    return canonical_json(json.loads(text, parse_float=_shortest))


def _shortest(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def json_schema(cls: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a config."""
    schema = {key: value for key, value in _schema(cls).items() if key not in ("title", "description")}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _schema_text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


# Cached: pydantic needs 75 ms for the schemas of the 35 built-ins.
@lru_cache(maxsize=256)
def _schema(cls: type[BaseModel]) -> Mapping[str, Any]:
    return cls.model_json_schema(by_alias=True)


# Limit per config, because a config of 256 KiB may contain 40,000 unknown keys.
_MAX_PROBLEMS: Final = 20


def config_problems(
    problem: ValidationError, config: Mapping[str, Any], cls: type[BaseModel]
) -> list[ConfigProblem]:
    """Return at most 20 problems of a config, and the number of further ones. Messages use the config's keys."""
    errors = problem.errors()
    schema = _schema(cls)
    found = [_problem(error, config, schema) for error in errors[:_MAX_PROBLEMS]]
    if len(errors) > _MAX_PROBLEMS:
        found.append(ConfigProblem("", f"and {len(errors) - _MAX_PROBLEMS} more problems"))
    return list(dict.fromkeys(found))


def _problem(error: Any, config: Mapping[str, Any], schema: Mapping[str, Any]) -> ConfigProblem:
    message = error["msg"]
    pointer = _pointer(error["loc"], config, missing=error["type"] == "missing")
    if message.startswith("Value error, "):
        message = message.removeprefix("Value error, ")
    elif error["type"] == "extra_forbidden":
        *path, key = pointer.split("/")[1:] or [""]
        known = schema_keys(schema, [int(part) if part.isdecimal() else part for part in path])
        message = unknown_key(key, known)
    elif error["type"] == "missing":
        message = "missing; it is required"
    else:
        got = repr(error["input"])
        message = f"{message[0].lower()}{message[1:]}, got {got if len(got) <= 80 else got[:77] + '...'}"
    return ConfigProblem(pointer, message)


def _pointer(location: Sequence[int | str], config: Any, *, missing: bool) -> str:
    """Return a JSON Pointer into the config. Skips branches of a union in the location."""
    path, at = "", config
    for position, part in enumerate(location):
        last = position == len(location) - 1
        if isinstance(part, int):
            if not isinstance(at, list) or part >= len(at):
                continue
            at = at[part]
        elif isinstance(at, Mapping) and part in at:
            at = at[part]
        elif not (last and missing):
            continue
        path += f"/{str(part)[:_LONGEST_PART]}"
    return path


_LONGEST_PART: Final = 100


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Return the message for an unknown key. It names the nearest known key, or all known keys."""
    wanted = f"; wanted one of {', '.join(known)}" if known else "; wanted none"
    return f"unknown key{did_you_mean(key, known) or wanted}"


def to_result(kind: Kind, outcome: Any, description: str = "") -> Result:
    """Convert the return value of a function to a Result.

    description: description of the evaluator; becomes the reason of a bare True or False.

    Raises ContractViolation if the value is not an Outcome.
    """
    if isinstance(outcome, Result):
        return outcome
    if isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[0], bool):
        success, reason = outcome
        return passed(str(reason)) if success else failed(str(reason))
    if isinstance(outcome, bool) and kind is Kind.ASSERTION:
        said = " ".join(description.partition("\n\n")[0].split())
        if outcome:
            return passed(said or "Passed")
        return failed(f"Not met: {said}" if said else "Failed")
    if kind is Kind.METRIC and isinstance(outcome, Real) and not isinstance(outcome, bool):
        try:
            value = float(outcome)
        except OverflowError:
            value = math.inf
        return measured(value, f"Measured {value:g}")
    if isinstance(outcome, Mapping) and isinstance(outcome.get("success"), bool):
        return Result(
            Verdict.PASSED if outcome["success"] else Verdict.FAILED,
            str(outcome.get("reason", "")),
            outcome.get("score"),
            outcome.get("value"),
            outcome.get("metadata"),
        )
    if inspect.iscoroutine(outcome):
        outcome.close()  # otherwise Python warns that it was never awaited
    wanted = "a bool, (bool, reason)" if kind is Kind.ASSERTION else "a number"
    raise ContractViolation(
        f"got {type(outcome).__name__}, wanted a Result, {wanted} or a mapping with 'success' and 'reason'"
    )


def _check_type(name: object) -> None:
    """Raise ValueError if this is no name of an evaluator type, TypeError if it is a function."""
    if callable(name):
        raise TypeError('a function, wanted the type\'s name: put @evald.assertion("acme.my-check") above it')
    if not isinstance(name, str) or not TYPE_PATTERN.fullmatch(name):
        raise ValueError(
            f"type: got {name!r}, wanted lower case letters, digits, '-' and '.', at most 63 bytes"
        )


def _check_kind(type_name: str, kind: object) -> None:
    if not isinstance(kind, Kind):
        raise TypeError(f"{type_name}: kind: {shown(kind)}; wanted evald.ASSERTION or evald.METRIC")


def _check_function(type_name: str, evaluate: object) -> None:
    """Raise TypeError if this is no function of one argument."""
    if not callable(evaluate):
        raise TypeError(f"{type_name}: evaluate: {shown(evaluate)}; wanted a function of a context")
    try:
        signature = inspect.signature(evaluate)
    except (TypeError, ValueError):  # a function of C without a signature
        return
    try:
        signature.bind(None)
    except TypeError as problem:
        raise TypeError(
            f"{type_name}: evaluate: is called with one argument, the context, but {problem}"
        ) from None


def define_evaluator(
    *,
    type: str,  # noqa: A002 - the word of the contract
    kind: Kind,
    evaluate: Function,
    label: str = "",
    description: str = "",
    config_schema: Mapping[str, Any] | None = None,
    version: str = "1.0.0",
    auto: bool = False,
    deterministic: bool = True,
    final_turn_only: bool = False,
    metric: Metric | None = None,
    required_data: tuple[str, ...] = (),
    inline: bool = False,
) -> EvaluatorDefinition:
    """Define an evaluator by a function, which gets its config as `ctx.config`.

    description: by default the function's docstring.
    config_schema: JSON Schema of the config, validated before the function runs. Without it the evaluator
        accepts no config.
    Other arguments as in `EvaluatorDefinition`.

    Returns the definition. Raises ValueError for a malformed type name, and TypeError for what is no kind, no function
    of one argument, or no schema.
    """
    _check_type(type)
    _check_kind(type, kind)
    _check_function(type, evaluate)
    schema: Mapping[str, Any] = config_schema or {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    if not isinstance(schema, Mapping):
        raise TypeError(
            f"{type}: config_schema: {shown(config_schema)}; wanted a JSON Schema that is an object"
        )
    is_async = inspect.iscoroutinefunction(evaluate)
    description = description or inspect.cleandoc(evaluate.__doc__ or "")

    def compile_config(config: Mapping[str, Any]) -> Evaluate:
        check_config(schema, config)

        def run(ctx: EvaluatorContext) -> Result | Awaitable[Result]:
            outcome = evaluate(ctx.with_config(config))
            if inspect.isawaitable(outcome) and not inline:
                return finish(outcome)
            return to_result(kind, outcome, description)

        async def run_async(ctx: EvaluatorContext) -> Result:
            return await finish(evaluate(ctx.with_config(config)))  # type: ignore[arg-type]

        async def finish(outcome: Awaitable[Outcome]) -> Result:
            return to_result(kind, await outcome, description)

        return run_async if is_async else run

    return EvaluatorDefinition(
        type=type,
        kind=kind,
        label=label or default_label(type),
        description=description,
        config_schema=lambda: _schema_text(schema),
        compile=compile_config,
        version=version,
        auto=auto,
        deterministic=deterministic,
        final_turn_only=final_turn_only,
        metric=metric if kind is Kind.ASSERTION else metric or Metric(),
        required_data=required_data,
        inline=inline and not is_async,
        is_async=is_async,
    )


class FunctionOptions(TypedDict, total=False):
    """The options of `assertion` and `metric`, as in `define_evaluator`."""

    label: str
    description: str
    config_schema: Mapping[str, Any]
    version: str
    auto: bool
    deterministic: bool
    final_turn_only: bool
    metric: Metric
    required_data: tuple[str, ...]
    inline: bool


def assertion(
    type: str,  # noqa: A002 - the word of the contract
    **options: Unpack[FunctionOptions],
) -> Callable[[Function], EvaluatorDefinition]:
    """Return a decorator that defines an assertion by a function. options: as in `define_evaluator`.

    The function returns a bool, (bool, reason) or a Result. Its docstring is the description, and the reason
    if the function returns a bare bool. Its config is in `ctx.config`.

    Raises ValueError for a malformed type name. The decorator raises TypeError as `define_evaluator` does.
    """
    _check_type(type)
    return lambda evaluate: define_evaluator(type=type, kind=Kind.ASSERTION, evaluate=evaluate, **options)


def metric(
    type: str,  # noqa: A002 - the word of the contract
    **options: Unpack[FunctionOptions],
) -> Callable[[Function], EvaluatorDefinition]:
    """Return a decorator that defines a metric by a function. options: as in `define_evaluator`.

    The function returns a number or a Result. Raises as `assertion` does.
    """
    _check_type(type)
    return lambda evaluate: define_evaluator(type=type, kind=Kind.METRIC, evaluate=evaluate, **options)


def compile_schema(schema: Mapping[str, Any]) -> "Draft202012Validator":
    """Compile a JSON Schema. Never follows references to other documents.

    Raises ValueError for an invalid JSON Schema of draft 2020-12.
    """
    from jsonschema_rs import Draft202012Validator  # its import takes longer than grpc's

    # Without a retriever the library opens http and file references.
    return Draft202012Validator(dict(schema), retriever=_refuse_reference)


def _refuse_reference(uri: str) -> NoReturn:
    raise ValueError("references to other documents are never followed")


def check_config(schema: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Validate a config against the JSON Schema of its evaluator. Raises InvalidConfig with up to 20 problems."""
    try:
        errors = list(islice(compile_schema(schema).iter_errors(dict(config)), _MAX_PROBLEMS))
    except ValueError as problem:  # not a JSON Schema, or the config contains a value that is not JSON
        message = getattr(problem, "message", str(problem))
        raise InvalidConfig([ConfigProblem("", f"cannot be checked: {message[:_MAX_MESSAGE]}")]) from None
    if errors:
        raise InvalidConfig([_schema_problem(schema, error) for error in errors])


def _schema_problem(schema: Mapping[str, Any], error: "jsonschema_rs.ValidationError") -> ConfigProblem:
    path = "".join(f"/{str(part)[:_LONGEST_PART]}" for part in error.instance_path)
    unknown = getattr(error.kind, "unexpected", None)
    if unknown:
        known = schema_keys(schema, error.instance_path)
        return ConfigProblem(f"{path}/{unknown[0][:_LONGEST_PART]}", unknown_key(unknown[0], known))
    return ConfigProblem(path, error.message[:_MAX_MESSAGE])


_MAX_MESSAGE: Final = 500
