"""The format of suite files: pydantic models, and the JSON Schema for completion in editors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from evald.fields import LEAST_WEIGHT, MOST_WEIGHT, WEIGHTS, found_and_wanted, is_weight, nearest, snake
from evald.records import camel
from evald.spec import spec_keys

MAX_ID_BYTES: Final = 256
MAX_TRIALS: Final = 100

_EXPECTED_KEYS: Final = ("text", "data", "messages", "tool_calls")
ABOUT_KEYS: Final = (
    "latency",
    "latency_ms",
    "latency_seconds",
    "time_to_first_token_ms",
    "usage",
    "token_usage",
    "tokens_usage",
    "cost_usd",
    "cost",
    "model",
    "finish_reason",
    "start_time",
)
"""Keys of a recorded answer beside its text or messages."""
_OUTPUT_KEYS: Final = ("text", "messages", *ABOUT_KEYS, "metadata", "error")
_TEXT: Final = {"type": "string"}
_MESSAGES: Final = {"type": "array", "items": {"type": "object"}}


def _object(keys: tuple[str, ...], required: tuple[str, ...] = ()) -> dict[str, Any]:
    texts = ("text", "model", "success", "failure", "type", "name")
    properties = {
        spelling: _TEXT if key in texts else {}
        for key in keys
        for spelling in dict.fromkeys((key, camel(key)))
    }
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "required": list(required),
    }


def _one_of(*kinds: type, wanted: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise PydanticCustomError("kind", "wanted {wanted}", {"wanted": wanted})
        return value

    return check


def _any_of(*schema: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(schema)})


_ANSWER: Final = BeforeValidator(
    _one_of(str, list, dict, wanted="text, a list of messages, or an object with one of them")
)

Input: TypeAlias = Annotated[
    Any,
    BeforeValidator(_one_of(str, list, dict, wanted="text or a list of messages")),
    _any_of(_TEXT, _MESSAGES, {"type": "object"}),
]
Output: TypeAlias = Annotated[
    Any,
    _any_of(_TEXT, _MESSAGES, _object(_OUTPUT_KEYS), {"type": ["object", "array", "number", "boolean"]}),
]
Reference: TypeAlias = Annotated[
    Any,
    _ANSWER,
    _any_of(_TEXT, _MESSAGES, _object(_EXPECTED_KEYS)),
]
Criteria: TypeAlias = Annotated[
    Any,
    BeforeValidator(_one_of(str, dict, wanted="text, or an object with `success` and `failure`")),
    _any_of(_TEXT, _object(("success", "failure"))),
]
EvaluatorUse: TypeAlias = Annotated[
    Any,
    BeforeValidator(_one_of(str, dict, wanted="a type name or an object with `type`")),
    _any_of(_TEXT, _object(tuple(spec_keys()), ("type",))),
]


def _id(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and not (value.strip() and value.isprintable()):
        raise PydanticCustomError("id", "wanted text of printable characters")
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) > MAX_ID_BYTES:
        raise PydanticCustomError("id", "wanted at most {most} bytes", {"most": MAX_ID_BYTES})
    return value


def _list(value: Any) -> Any:
    """Return a single text as a list of one."""
    return [value] if isinstance(value, str) else value


def _name(value: Any) -> Any:
    # 200 characters: the server's limit.
    if isinstance(value, str) and not (value.strip() and value.isprintable() and len(value) <= 200):
        raise PydanticCustomError("name", "wanted at most 200 printable characters")
    return value


def _weight(value: float) -> float:
    if not is_weight(value):
        raise PydanticCustomError("weight", "wanted {wanted}", {"wanted": WEIGHTS})
    return value


SuiteName = Annotated[str, BeforeValidator(_name)]
Id = Annotated[str, BeforeValidator(_id), WithJsonSchema({"type": ["string", "integer"]})]
Texts = Annotated[
    list[str], BeforeValidator(_list), WithJsonSchema({"type": ["array", "string"], "items": _TEXT})
]
Messages = Annotated[list[Any], WithJsonSchema(_MESSAGES)]
Trials = Annotated[int, Field(ge=1, le=MAX_TRIALS)]
Share = Annotated[float, Field(ge=0, le=1)]
Threshold = Annotated[float, Field(gt=0, le=1)]
"""A minimum share. Every result would reach 0."""
Weight = Annotated[
    float,
    AfterValidator(_weight),
    WithJsonSchema(
        {"anyOf": [{"const": 0}, {"type": "number", "minimum": LEAST_WEIGHT, "maximum": MOST_WEIGHT}]}
    ),
]


class FilePart(BaseModel):
    """A mapping of a suite file. Its keys are in camelCase or snake_case; null counts as absent."""

    model_config = ConfigDict(extra="forbid", strict=True)
    aliases: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _names(cls, data: Any) -> Any:
        fields = cls.model_fields
        if not isinstance(data, dict) or (data.keys() <= fields.keys() and None not in data.values()):
            return data
        found: dict[str, Any] = {}
        for key, value in data.items():
            name = cls.field_of(key)
            if name in found:
                raise PydanticCustomError("twice", "{key} is given twice", {"key": name})
            if value is not None or name not in fields:
                found[name] = value
        return found

    @classmethod
    def field_of(cls, key: str) -> str:
        """Return the field name of a key; an unknown key is returned unchanged."""
        name = snake(key)
        name = cls.aliases.get(name, name)
        return name if name in cls.model_fields else key


class TurnEntry(FilePart):
    """One turn of a conversation case."""

    aliases = {
        "expected_output": "expected",
        "reference_answer": "expected",
        "expected_outcome": "criteria",
    }

    input: Input = Field(description="The user's message: text, or a list of messages.")
    output: Output = Field(None, description="Recorded answer.")
    expected: Reference = Field(None, description="The expected answer, for comparison.")
    criteria: Criteria = Field(
        None, description="Adds an llm-judge with these criteria; its name in results is criteria."
    )
    evaluators: list[EvaluatorUse] = Field(default_factory=list, description="Evaluators of this turn.")


class CaseEntry(FilePart):
    """One case."""

    aliases = TurnEntry.aliases

    id: Id = Field(description="Unique in the suite.")
    description: str = Field("", description="Description for readers.")
    tags: Texts = Field(default_factory=list, description="Used by --tag, --exclude-tag and reports.")
    weight: Weight = Field(1, description="Weight of the case in the suite's pass rate.")
    messages: Messages = Field(
        default_factory=list,
        description="Messages before the first turn; without `input` and `turns`, a conversation whose last turn is evaluated.",
    )
    input: Input = Field(None, description="The user's message: text, or a list of messages.")
    output: Output = Field(
        None,
        description="Recorded answer: text, messages, text with latency, usage and cost, or data; "
        "error in place of text: there is none, and the case is in error.",
    )
    outputs: list[Output] = Field(default_factory=list, description="Recorded answers, one for each trial.")
    expected: Reference = Field(None, description="The expected answer, for comparison.")
    criteria: Criteria = Field(
        None, description="Adds an llm-judge with these criteria; its name in results is criteria."
    )
    evaluators: list[EvaluatorUse] = Field(
        default_factory=list, description="Evaluators of this case, run after the suite's."
    )
    inherit: bool = Field(True, description="false: do not run the suite's evaluators.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Evaluation options, which replace the suite's."
    )
    trials: Trials | None = Field(None, description="Number of times the agent is called.")
    min_passed: Trials | None = Field(
        None, description="Minimum number of trials that must pass; default: all."
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Passed on to evaluators and reports.")
    turns: list[TurnEntry] = Field(
        default_factory=list, description="A conversation, with evaluators for each turn."
    )
    skip: str | bool = Field(default=False, description="true, or the reason: do not run the case.")


class SuiteEntry(FilePart):
    """A suite without its cases."""

    aliases = {"target": "targets"}

    name: SuiteName = Field("", description="Name of the suite; default: the name of the file.")
    description: str = Field("", description="Description for readers.")
    targets: Texts = Field(
        default_factory=list,
        description="Names of the connectors to test, stored on the server or in `connectors`.",
    )
    connectors: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Connectors by name.")
    evaluators: list[EvaluatorUse] = Field(
        default_factory=list, description="Run on the last turn of every case."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Evaluation options.")
    trials: Trials | None = Field(
        None, description="Number of times the agent is called for each case; default: 1."
    )
    min_passed: Trials | None = Field(
        None, description="Minimum number of trials of a case that must pass; default: all."
    )
    threshold: Threshold | None = Field(
        None, description="Minimum share of the cases, by weight, that must pass; default: 1."
    )
    max_concurrency: int = Field(0, ge=0, le=256, description="Maximum number of concurrent calls of agents.")
    end_marks: Texts = Field(
        default_factory=list,
        description="Further marks with which a simulated user ends a conversation, beside ###STOP### and the like.",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels for Prometheus metrics.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Stored with the results.")


class SuiteDocument(SuiteEntry):
    """A suite of cases for evald test."""

    cases: list[CaseEntry] = Field(min_length=1, description="The cases.")


def suite_schema() -> dict[str, Any]:
    """Return the JSON Schema of suite files, with the keys in both spellings."""
    schema = SuiteDocument.model_json_schema()
    models: list[tuple[type[FilePart], dict[str, Any]]] = [
        (SuiteDocument, schema),
        (CaseEntry, schema["$defs"]["CaseEntry"]),
        (TurnEntry, schema["$defs"]["TurnEntry"]),
    ]
    for model, part in models:
        properties = part["properties"]
        for name in list(properties):
            properties[name].pop("title", None)
            if camel(name) != name:
                properties[camel(name)] = properties[name]
        for alias, name in model.aliases.items():
            properties[alias] = properties[name]
            if camel(alias) != alias:
                properties[camel(alias)] = properties[name]
        part.pop("title", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "evald suite", **schema}


def problem_message(error: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return an error of pydantic as text: the value that was found, and what was wanted.

    known: keys of the mapping, of which an error about an unknown key suggests the nearest.
    """
    if error["type"] == "extra_forbidden":
        near = nearest(snake(str(error["loc"][-1])), known)
        return (
            f"unknown key; did you mean {near!r}?" if near else f"unknown key; known keys: {', '.join(known)}"
        )
    return found_and_wanted(error)
