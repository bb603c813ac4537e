"""A model gives the verdict: the evaluator type `llm-judge`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from evald.context import EvaluatorContext
from evald.evaluator import ConfigProblem, Evaluate, EvaluatorDefinition, InvalidConfig
from evald.result import Result, Verdict, errored, skipped
from evald.scope import current_scope
from evald_server.evaluators.results import missing

from .answers import Unusable
from .asking import Vote, ask
from .ballot import Ballot, Seat
from .config import LlmJudge, Panelist
from .form import Form
from .hollow import hollow
from .prompt import MAX_CHARACTERS, Prompt
from .question import Answer, Models, Question
from .transcript import has_expected, size

_NOT_FINAL: Final = skipped("Skipped (not final turn)")

# Longest conversation that is encoded right in the event loop, in characters: 50,000 take 0.5 to 3 ms.
_MAX_INLINE: Final = 50_000

# Longest text kept in a result's raw request, in characters: a result has to fit into the 4 MiB that
# gRPC's clients take by default.
_MAX_RAW_TEXT: Final = 65_536


def judge_definition(models: Models) -> EvaluatorDefinition:
    """The type `llm-judge`, on these models."""

    def compile_config(config: Mapping[str, Any]) -> Evaluate:
        return Judging(LlmJudge.from_config(config), models).evaluate

    return LlmJudge.definition()._replace(compile=compile_config)


class Judging:
    """One use of the judge. Raises InvalidConfig when a judge or model that it names is not there."""

    def __init__(self, config: LlmJudge, models: Models) -> None:
        self._config = config
        self._seats = _seats(config, models)
        self._form = config.form
        self._prompt = Prompt(self._form, config.view, config.prompt)
        self._max_tokens = config.max_output_tokens or self._form.max_tokens
        self._digest = config.digest

    async def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Ask, and say what most answers say."""
        unasked = self._unasked(ctx)
        if unasked is not None:
            return unasked
        characters = size(ctx, self._config.view) if self._form.template is None else len(ctx.answer or "")
        if characters > MAX_CHARACTERS:
            return errored(
                "INPUT_TOO_LARGE",
                f"The conversation has {characters} characters; a judge is shown at most {MAX_CHARACTERS}. "
                "Judge a part of it, or set includeHistory to false",
            )
        ballot = Ballot(self._seats, self._config.samples, current_scope())
        if characters > _MAX_INLINE:
            evidence = await asyncio.to_thread(self._prompt.evidence, ctx)
        else:
            evidence = self._prompt.evidence(ctx)

        def question(seat: Seat, sample: int) -> Question:
            return self._prompt.question(
                evidence,
                self._max_tokens,
                seat.temperature,
                sample,
                lambda answer: _readable(self._form, answer, ctx),
            )

        async def ask_sample(seat: Seat, sample: int) -> Vote:
            return await ask(seat.asker, question(seat, sample), self._form, ctx, ballot.spending)

        vote = await ballot.run(ask_sample)
        result = ballot.result(vote)
        result.metadata = {"mode": self._form.mode, **(vote.judgement.details if vote.judgement else {})}
        result.metadata["judge"] = {
            **ballot.provenance(vote),
            "evaluatorVersion": LlmJudge.version,
            "configDigest": self._digest,
            "promptDigest": self._prompt.digest,
            **({} if self._config.calibration is None else {"calibration": self._config.calibration}),
        }
        result.raw_request = _shortened(ballot.request() or _as_messages(question(self._seats[0], 0)))
        return result

    def _unasked(self, ctx: EvaluatorContext) -> Result | None:
        """The result where no model has to be asked."""
        config, form = self._config, self._form
        if (config.only_final and not ctx.is_final) or not form.applies(ctx):
            return _NOT_FINAL
        lack = ctx.missing_answer
        if ctx.answer is not None:
            kind = hollow(ctx)
            lack = f"The answer is {kind}, so that there is nothing to judge" if kind else ""
        if lack:
            return Result(Verdict.FAILED, lack, 0.0, pending=form.can_wait(ctx), unproven=True)
        if config.include_expected and not has_expected(ctx):
            return missing(config.on_missing, "No expected answer available")
        return None


def _seats(config: LlmJudge, models: Models) -> Sequence[Seat]:
    seats, problems = [], []
    for position, panelist in enumerate(config.judges or [Panelist(judge=config.judge, model=config.model)]):
        temperature = config.temperature if panelist.temperature is None else panelist.temperature
        try:
            seats.append(Seat(models.asker(panelist.judge, panelist.model), temperature))
        except ValueError as problem:
            problems.append(ConfigProblem(_place(config, position), str(problem)))
    if problems:
        raise InvalidConfig(problems)
    return seats


def _place(config: LlmJudge, position: int) -> str:
    if config.judges is not None:
        return f"/judges/{position}"
    return "/judge" if config.judge is not None else "/model" if config.model is not None else ""


def _readable(form: Form, answer: Answer, ctx: EvaluatorContext) -> bool:
    try:
        form.read(answer, ctx)
    except Unusable:
        return False
    return True


def _as_messages(question: Question) -> Mapping[str, Any]:
    """What was to be sent, where nobody says what was."""
    return {
        "messages": [
            {"role": "system", "content": question.instructions},
            {"role": "user", "content": question.material},
        ]
    }


def _shortened(data: Any) -> Any:
    """The data with its long texts cut."""
    if isinstance(data, Mapping):
        return {key: _shortened(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_shortened(value) for value in data]
    if isinstance(data, str) and len(data) > _MAX_RAW_TEXT:
        return f"{data[:_MAX_RAW_TEXT]}… ({len(data) - _MAX_RAW_TEXT} more characters)"
    return data
