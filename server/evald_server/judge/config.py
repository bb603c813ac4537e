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
    model: Text | None = Field(
        None, description="Model to use in place of the model that is configured for the judge."
    )
    temperature: Annotated[
        float | None,
        Field(
            ge=0,
            le=2,
            description="Sampling temperature of this judge. Default: the evaluator's temperature.",
        ),
    ] = None


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
    """A model judges the turn by criteria or a rubric in plain language.

    One of five ways to say what is wanted: `successCriteria` and
    `failureCriteria`, `criteria`, `rubric`, `items`, or `grader`.
    """

    success_criteria: Text | None = Field(
        None, description="Condition for success of the conversation, in plain language."
    )
    failure_criteria: Text | None = Field(
        None,
        description="Condition for failure of the conversation; if it is met, the verdict is "
        "FAILED even if the success criteria are met.",
    )
    failure_criteria_mode: FailureMode = Field(
        "on_max_messages",
        description="When met failure criteria count. every_turn: on every turn. on_max_messages: "
        "on the final turn, or on every turn if the caller does not count turns.",
    )
    criteria: Text | None = Field(
        None, description="What a good turn is; the judge gives a score from 0 to 1."
    )
    threshold: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="With criteria or items: minimum score that passes. Default: 0.8."
    )
    rubric: Text | None = Field(
        None, description="What a good and a bad turn is; the judge gives a whole number from 0 to 10."
    )
    pass_score: Annotated[float, Field(gt=0, le=10)] = Field(
        DEFAULT_PASS_SCORE, description="With rubric: minimum number that passes."
    )
    prompt_template: Text | None = Field(
        None,
        description="With rubric: your own prompt. It must contain {rubric} and {output}, and ask "
        "for the lines SCORE: and REASON:.",
    )
    items: Annotated[list[Item], Field(min_length=1, max_length=100)] | None = Field(
        None,
        description="Items that the judge marks as met or not met. Score: weight of the items met "
        "/ weight of all items.",
    )
    grader: ModelGrader | None = Field(
        None,
        description="A prompt with variables, answered with a number or a label, as in OpenAI's graders.",
    )
    prompt: Text | None = Field(None, description="Replaces the system message.")
    judge: Text | None = Field(
        None, description="Name of a judge in the server's config. Default: the server's default judge."
    )
    model: Text | None = Field(
        None, description="Model to use in place of the model that is configured for the judge."
    )
    judges: (
        Annotated[
            list[Annotated[Panelist, BeforeValidator(_from_name, json_schema_input_type=str | Panelist)]],
            Field(min_length=1, max_length=10),
        ]
        | None
    ) = Field(
        None,
        description="A panel of judges, which decides by strict majority; a string is the name of a judge.",
    )
    samples: Annotated[int, Field(ge=1, le=20)] = Field(
        1,
        description="Maximum number of times that each judge is asked; its vote is the majority of "
        "its answers.",
    )
    temperature: Annotated[float, Field(ge=0, le=2)] = Field(0.0, description="Sampling temperature.")
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Maximum tokens of an answer. Default: 1024, more with many items."
    )
    include_history: bool = Field(
        True, description="Show the whole conversation, not only the last user message and the turn."
    )
    include_expected: bool = Field(False, description="Show the context's expected answer.")
    include_system: bool = Field(False, description="Show system and developer messages.")
    only_final: bool = Field(False, description="Skip all turns except the final one.")
    on_missing: OnMissing = Field(
        "fail",
        description="Verdict if includeExpected is set and there is no expected answer; error: "
        "ERROR with code MISSING_DATA.",
    )
    # Not part of the config's digest: naming a card does not change the judge.
    calibration: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        exclude=True,
        description="Id of the calibration card of this judge, shown in results in place of the operator's.",
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
                "no criteria to judge by; wanted one of: successCriteria or failureCriteria "
                "(or both), criteria, rubric, items, grader",
            )
        elif len(given) > 1:
            first, second = (next(key for key in _MODES[mode][0] if self._has(key)) for mode in given[:2])
            text = (
                f"got both {to_camel(second)} and {to_camel(first)}, wanted one of them; use two "
                "evaluators to check both"
            )
            yield _problem(second, text)
        else:
            keys, allowed = _MODES[given[0]]
            for key in sorted(frozenset().union(*(more for _, more in _MODES.values())) - allowed):
                yield from self._without_meaning(
                    (key,), f"{to_camel(keys[0])}; it applies to {_modes_of(key)}"
                )

    def _template_problems(self) -> Iterator[ConfigProblem]:
        if self.grader is not None:
            yield from self._without_meaning(
                ("prompt", *_VIEW_KEYS), "grader, whose input defines what the judge sees"
            )
            return
        if self.prompt_template is None or self.rubric is None:
            return
        found = {match[1] for match in PLACEHOLDER.finditer(self.prompt_template)}
        for name in sorted(found - PLACEHOLDERS):
            text = f"unknown placeholder {{{name}}}; the placeholders are {{rubric}} and {{output}}"
            yield _problem("prompt_template", text)
        for name in sorted(PLACEHOLDERS - found):
            text = f"{{{name}}} is missing, so the judge would not see it"
            yield _problem("prompt_template", text)
        yield from self._without_meaning(_VIEW_KEYS, "promptTemplate, which shows only the answer")

    def _panel_problems(self) -> Iterator[ConfigProblem]:
        if self.judges is None:
            return
        for key in ("judge", "model"):
            if self._has(key):
                yield _problem(key, f"got both {key} and judges, wanted one of them")
        for position, panelist in enumerate(self.judges):
            first = self.judges.index(panelist)
            if first < position:
                text = (
                    f"the same as judges[{first}], so it would vote twice; set samples to ask a "
                    "judge several times"
                )
                yield ConfigProblem(f"/judges/{position}", text)

    def _without_meaning(self, keys: Sequence[str], beside: str) -> Iterator[ConfigProblem]:
        """Yield a problem for each of these keys that is set."""
        for key in keys:
            if key in self.model_fields_set:
                yield _problem(key, f"not allowed with {beside}")

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
                f"/items/{position}/id",
                f"got {name!r}, which is already the id of items[{names.index(name)}]; wanted unique ids",
            )
    if not sum(item.weight for item in items):
        yield ConfigProblem("/items", "all weights are 0, so there is no score; wanted at least one above 0")
