"""evald's own format of labelled cases."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from evald_server.calibration.cases import Case

from .records import BadCases, CaseRecord

_WANTED: Final = (
    'wanted {"id", "question" or "messages", "answer", "label": "pass" or "fail"}, '
    'or "answers" with two strings and "label": "a" or "b"'
)

_Text = Annotated[str, Field(min_length=1)]


class LabelledCase(BaseModel):
    """One record. Keys are camelCase or snake_case; unknown ones are refused, because a mistyped `criteria`
    would silently change what is judged."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    id: _Text = Field(description="Unique among all files of a calibration.")
    question: _Text | None = Field(None, description="The user's request; a short form of `messages`.")
    messages: list[dict[str, Any]] | None = Field(
        None, min_length=1, description="The conversation in OpenAI's format; may end with the answer."
    )
    answer: str | None = Field(None, description="The agent's answer.")
    answers: Annotated[list[_Text], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Two answers, a and b, in place of `answer`."
    )
    label: Literal["pass", "fail", "a", "b"] = Field(
        description="Verdict of people: pass or fail for one answer, a or b for the better one of two."
    )
    criteria: str = Field("", description="What a passing answer does; replaces the judge's own criteria.")
    expected: str = Field("", description="The expected answer.")
    source: str = Field("", description="The dataset; figures are also given by source.")
    tags: list[str] = Field([], description="Free-form.")
    metadata: dict[str, Any] = Field({}, description="Metadata for your own evaluators.")


def fits(data: Mapping[str, Any]) -> bool:
    """Return whether a record seems to have this format."""
    return "label" in data and ("answer" in data or "answers" in data or "messages" in data)


def read(records: Sequence[CaseRecord]) -> Iterator[Case]:
    """Convert the records. Raises BadCases for the first invalid one."""
    for record in records:
        try:
            found = LabelledCase.model_validate(record.data)
        except ValidationError as problem:
            raise BadCases(f"{record.place}: {_first_error(problem)}; {_WANTED}") from None
        yield _case(found, record.place)


def _case(found: LabelledCase, place: str) -> Case:
    if (found.question is None) == (found.messages is None):
        raise BadCases(
            f"{place}: question, messages: got {'none' if found.messages is None else 'both'}; {_WANTED}"
        )
    messages = list(found.messages or [{"role": "user", "content": found.question}])
    if found.answer is not None and found.answers is not None:
        raise BadCases(f"{place}: answer, answers: got both; {_WANTED}")
    of_pair = found.label in ("a", "b")
    if of_pair != (found.answers is not None):
        number = "two answers" if found.answers is not None else "one answer"
        raise BadCases(f'{place}: label: got "{found.label}" for {number}; {_WANTED}')
    if found.answer is not None:
        messages.append({"role": "assistant", "content": found.answer})
    elif found.answers is None and messages[-1].get("role") != "assistant":
        raise BadCases(
            f"{place}: no answer: the messages end with a message of role "
            f"{messages[-1].get('role')!r}; {_WANTED}"
        )
    return Case(
        id=found.id,
        messages=messages,
        label=found.label,
        pair=(found.answers[0], found.answers[1]) if found.answers is not None else None,
        criteria=found.criteria,
        expected=found.expected,
        source=found.source,
        tags=tuple(found.tags),
        metadata=found.metadata,
    )


def _first_error(problem: ValidationError) -> str:
    error = problem.errors()[0]
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path, LabelledCase.model_fields, n=1)
        return f"{path}: unknown key" + (f", did you mean {near[0]}?" if near else "")
    if error["type"] == "missing":
        return f"{path}: missing"
    return f"{path}: {error['msg'][0].lower()}{error['msg'][1:]}, got {str(error['input'])[:80]!r}"
