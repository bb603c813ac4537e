"""The config of `llm-judge`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic.alias_generators import to_camel

from evald.evaluator import ConfigProblem, Evaluator, InvalidConfig
from evald.result import ASSERTION
from evald_server.evaluators.results import OnMissing

from .grader_modes import GraderMode, ModelGrader
from .rubric_modes import (
    DEFAULT_PASS_SCORE,
    PLACEHOLDER,
    PLACEHOLDERS,
    CriteriaMode,
    FailureMode,
    Item,
    ItemsMode,
    PointsMode,
    RubricMode,
    ScoreMode,
)
from .transcript import View


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("blank; wanted text")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_not_blank)]

# By mode: the keys that select it, and the other keys that apply to it.
_MODES: Final[Mapping[str, tuple[tuple[str, ...], frozenset[str]]]] = {
    "criteria": (("success_criteria", "failure_criteria"), frozenset({"failure_criteria_mode"})),
    "score": (("criteria",), frozenset({"threshold"})),
    "rubric": (("rubric",), frozenset({"pass_score", "prompt_template"})),
    "items": (("items",), frozenset({"threshold"})),
    "grader": (("grader",), frozenset()),
}

# Keys that select the data shown. A prompt template shows the answer alone.
_VIEW_KEYS: Final = ("include_history", "include_expected", "include_system")


class Panelist(BaseModel):
    """One judge of a panel."""

    model_config = Evaluator.model_config

    judge: Text | None = Field(None, description="Name of the judge in the server's config.")
    model: Text | None = Field(None, description="Another model than the one that is configured there.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None


def _from_name(value: Any) -> Any:
    return {"judge": value} if isinstance(value, str) else value


class LlmJudge(
    Evaluator,
    type="llm-judge",
    kind=ASSERTION,
    label="LLM Judge",
    aliases={"llm-rubric": {}, "quality": {}},
    deterministic=False,
    required_data=("messages",),
):
    """A model judges the turn, by criteria or by a rubric in plain language.

    One of five ways to say what is wanted: `successCriteria` and
    `failureCriteria`, `criteria`, `rubric`, `items`, or `grader`.
    """

    success_criteria: Text | None = Field(None, description="When the conversation has succeeded.")
    failure_criteria: Text | None = Field(None, description="When it has failed, whatever else is true.")
    failure_criteria_mode: FailureMode = Field(
        "on_max_messages",
        description="on_max_messages: met failure criteria count on the final turn, or when turns are not counted.",
    )
    criteria: Text | None = Field(None, description="What a good turn is, for a score from 0 to 1.")
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="With criteria or items: the least score that passes; 0.8 when left out."
    )
    rubric: Text | None = Field(None, description="What is good and bad, for a whole number from 0 to 10.")
    pass_score: Annotated[float, Field(ge=0, le=10)] = Field(
        DEFAULT_PASS_SCORE, description="With a rubric: the least number that passes."
    )
    prompt_template: Text | None = Field(
        None,
        description="With a rubric: the request in your words, with {rubric} and {output} in it. It must ask "
        "for the lines SCORE: and REASON:.",
    )
    items: Annotated[list[Item], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Items, each met or not; the score is the weight of those met."
    )
    grader: ModelGrader | None = Field(
        None,
        description="A prompt with variables and numbers or labels for an answer, as in OpenAI's graders.",
    )
    prompt: Text | None = Field(None, description="Replaces the system message.")
    judge: Text | None = Field(None, description="Name of a judge in the server's config, else the default.")
    model: Text | None = Field(None, description="Another model than the one that is configured there.")
    judges: (
        Annotated[
            list[Annotated[Panelist, BeforeValidator(_from_name, json_schema_input_type=str | Panelist)]],
            Field(min_length=1, max_length=10),
        ]
        | None
    ) = Field(None, description="A panel, by strict majority; a text is the name of a judge.")
    samples: Annotated[int, Field(ge=1, le=20)] = Field(
        1, description="How often each judge is asked, at most; it votes as most of its answers do."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Most tokens of an answer; 1024 when left out, more with many items."
    )
    include_history: bool = Field(
        True, description="Show the whole conversation, not only the last user message and the turn."
    )
    include_expected: bool = Field(False, description="Show the context's expected answer.")
    include_system: bool = Field(False, description="Show system and developer messages.")
    only_final: bool = Field(False, description="Skip turns that are not final.")
    on_missing: OnMissing = Field(
        "fail", description="Verdict when an expected answer is to be shown and missing."
    )
    # Not part of the config's digest: naming a card does not change the judge.
    calibration: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        exclude=True,
        description="Id of the calibration card of this judge, repeated in results in place of the operator's.",
    )

    def prepare(self) -> None:
        """Check conditions that involve several keys. Raises InvalidConfig."""
        problems = [*self._mode_problems(), *self._template_problems(), *self._panel_problems()]
        if self.items is not None:
            problems += _item_problems(self.items)
        if problems:
            raise InvalidConfig(problems)

    @property
    def mode(self) -> RubricMode:
        """The mode selected by the keys."""
        if self.criteria is not None:
            return ScoreMode(self.criteria, self.threshold)
        if self.rubric is not None:
            return PointsMode(self.rubric, self.pass_score, self.prompt_template)
        if self.items is not None:
            return ItemsMode(self.items, self.threshold)
        if self.grader is not None:
            return GraderMode(self.grader)
        return CriteriaMode(self.success_criteria, self.failure_criteria, self.failure_criteria_mode)

    @property
    def system_message(self) -> str | None:
        """The replacement of the system message; None for no replacement."""
        return self.prompt if self.grader is None else self.grader.system_message

    @property
    def view(self) -> View:
        """The parts of the context that are shown."""
        return View(self.include_history, self.include_expected, self.include_system)

    def _mode_problems(self) -> Iterator[ConfigProblem]:
        given = [mode for mode, (keys, _) in _MODES.items() if any(self._has(key) for key in keys)]
        if not given:
            yield ConfigProblem(
                "",
                "says not what to judge by; wanted one of: successCriteria and failureCriteria (or one of "
                "them), criteria, rubric, items, grader",
            )
        elif len(given) > 1:
            first, second = (next(key for key in _MODES[mode][0] if self._has(key)) for mode in given[:2])
            text = f"given together with {to_camel(first)}, but a judge is asked in one way only; use two evaluators"
            yield _problem(second, text)
        else:
            keys, allowed = _MODES[given[0]]
            for key in sorted(frozenset().union(*(more for _, more in _MODES.values())) - allowed):
                yield from self._without_meaning(
                    (key,), f"{to_camel(keys[0])}; it goes with {_modes_of(key)}"
                )

    def _template_problems(self) -> Iterator[ConfigProblem]:
        if self.grader is not None:
            yield from self._without_meaning(
                ("prompt", *_VIEW_KEYS), "grader, whose input says what is shown"
            )
            return
        if self.prompt_template is None or self.rubric is None:
            return
        found = {match[1] for match in PLACEHOLDER.finditer(self.prompt_template)}
        for name in sorted(found - PLACEHOLDERS):
            text = f"unknown placeholder {{{name}}}; the placeholders are {{rubric}} and {{output}}"
            yield _problem("prompt_template", text)
        for name in sorted(PLACEHOLDERS - found):
            text = f"{{{name}}} is missing, so that the judge would not see it"
            yield _problem("prompt_template", text)
        yield from self._without_meaning(_VIEW_KEYS, "promptTemplate, which shows the answer alone")

    def _panel_problems(self) -> Iterator[ConfigProblem]:
        if self.judges is None:
            return
        for key in ("judge", "model"):
            if self._has(key):
                yield _problem(key, "given together with judges; name the judge in one of the two places")
        for position, panelist in enumerate(self.judges):
            first = self.judges.index(panelist)
            if first < position:
                text = f"the same as judges[{first}], so that it would vote twice; to ask a judge several times set samples"
                yield ConfigProblem(f"/judges/{position}", text)

    def _without_meaning(self, keys: Sequence[str], beside: str) -> Iterator[ConfigProblem]:
        """Yield a problem for each of these keys that is set."""
        for key in keys:
            if key in self.model_fields_set:
                yield _problem(key, f"has no meaning with {beside}")

    def _has(self, key: str) -> bool:
        return getattr(self, key) is not None


def _problem(key: str, message: str) -> ConfigProblem:
    return ConfigProblem(f"/{to_camel(key)}", message)


def _modes_of(key: str) -> str:
    """Return the main keys of the modes that this key applies to."""
    return " or ".join(to_camel(keys[0]) for keys, more in _MODES.values() if key in more)


def _item_problems(items: Sequence[Item]) -> Iterator[ConfigProblem]:
    names = [item.id for item in items]
    for position, name in enumerate(names):
        if names.index(name) < position:
            yield ConfigProblem(
                f"/items/{position}/id", f"{name!r} is the id of items[{names.index(name)}] already"
            )
    if not sum(item.weight for item in items):
        yield ConfigProblem("/items", "all weights are 0, so that there is no score; wanted one above 0")
