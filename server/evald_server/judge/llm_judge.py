"""The evaluator type `llm-judge`: a model gives the verdict.

Order of processing: config -> `prompt` (task and fenced data) -> `judge_call` (cache, retries, budget,
concurrency, parsing by `rubric_modes`) -> `voting` -> Result.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from evald.context import EvaluatorContext
from evald.evaluator import ConfigProblem, Evaluate, EvaluatorDefinition, InvalidConfig
from evald.result import Provenance, Result, Verdict, errored, skipped
from evald.scope import current_scope
from evald_server.evaluators.results import missing

from .answer_parsing import UnusableAnswer
from .config import LlmJudge, Panelist
from .degenerate_answers import degenerate_kind
from .judge_call import call_judge
from .prompt import MAX_CHARACTERS, Prompt, Shown
from .prompt_request import JudgeModel, JudgeModels, ModelAnswer, PromptRequest
from .transcript import has_expected
from .voting import Panel, PanelMember, Vote

_NOT_FINAL: Final = skipped("Skipped (not final turn)")

# Largest context that is encoded in the event loop: 3 ms at worst.
_MAX_INLINE_BYTES: Final = 20_000
_MAX_INLINE_MESSAGES: Final = 100

# Longest text in a result's raw request, in characters: a result must fit into the 4 MiB that gRPC
# clients accept by default.
_MAX_RAW_TEXT: Final = 65_536


def judge_definition(models: JudgeModels) -> EvaluatorDefinition:
    """Return the type `llm-judge` with these models."""

    def compile_config(config: Mapping[str, Any]) -> Evaluate:
        return CompiledJudge(LlmJudge.from_config(config), models).evaluate

    return LlmJudge.definition()._replace(compile=compile_config)


class CompiledJudge:
    """A compiled config of `llm-judge`. Raises InvalidConfig for an unknown judge or model.

    only_final: it skips turns that are not final. scores_confidence: its score is the judge's confidence.
    provenance: of its results, without the digest of `config`.
    """

    def __init__(self, config: LlmJudge, models: JudgeModels) -> None:
        self.config = config
        self._members = _panel_members(config, models)
        self._mode = config.mode
        self._prompt = Prompt(self._mode, config.view, config.system_message)
        self._max_tokens = config.max_output_tokens or self._mode.max_tokens
        self.only_final = config.only_final or self._mode.only_final
        self.scores_confidence = self._mode.scores_confidence
        self.provenance = _provenance([member.model for member in self._members], config, self._prompt)

    async def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Ask the judges and return the result of their vote."""
        result = self._without_asking(ctx)
        if result is not None:
            return result
        small = ctx.size_bytes <= _MAX_INLINE_BYTES and ctx.message_count <= _MAX_INLINE_MESSAGES
        shown = self._shown(ctx) if small else await self._shown_later(ctx)
        if shown.characters > MAX_CHARACTERS:
            return errored(
                "INPUT_TOO_LARGE",
                f"The conversation has {shown.characters} characters; a judge is shown at most "
                f"{MAX_CHARACTERS}; evaluate a part of it, or set includeHistory to false",
            )
        if small:
            evidence = self._prompt.evidence(shown)
        else:
            evidence = await asyncio.to_thread(self._prompt.evidence, shown)

        def is_usable(answer: ModelAnswer) -> bool:
            try:
                self._mode.parse(answer, ctx)
            except UnusableAnswer:
                return False
            return True

        def request(member: PanelMember, sample: int) -> PromptRequest:
            trial = max(1, ctx.attempt)  # 0: the caller does not count
            return self._prompt.request(
                evidence, self._max_tokens, member.temperature, sample, trial, is_usable
            )

        async def ask(member: PanelMember, sample: int) -> Vote:
            return await call_judge(member.model, request(member, sample), self._mode, ctx, panel.spending)

        panel = Panel(self._members, self.config.samples, current_scope())
        vote = await panel.vote(ask)
        result = panel.result(vote)
        if vote.judgement is not None:
            result.value = vote.judgement.value
        result.metadata = {
            "mode": self._mode.name,
            **(vote.judgement.details if vote.judgement else {}),
            "judge": panel.votes_of(vote),
        }
        result.raw_request = _shorten_texts(
            panel.first_request() or _as_messages(request(self._members[0], 0))
        )
        return result

    def _without_asking(self, ctx: EvaluatorContext) -> Result | None:
        """Return the result if no model needs to be asked, else None."""
        config, mode = self.config, self._mode
        if (config.only_final and not ctx.is_final) or not mode.applies(ctx):
            return _NOT_FINAL
        if not ctx.agent_spoke("turn"):
            problem = ctx.missing_answer
        else:
            kind = ctx.once("degenerate", lambda: degenerate_kind(ctx))
            problem = f"The answer is {kind}, so there is nothing to judge" if kind else ""
        if problem:
            return Result(Verdict.FAILED, problem, 0.0, pending=mode.can_pass_later(ctx), unproven=True)
        if config.include_expected and not has_expected(ctx):
            return missing(config.on_missing, "No expected answer available")
        return mode.missing(ctx)

    def _shown(self, ctx: EvaluatorContext) -> Shown:
        """Return the data for the judge, built once for all judges with the same data."""
        shows = self._prompt.shows
        return self._prompt.shown(ctx) if shows is None else ctx.once(shows, lambda: self._prompt.shown(ctx))

    async def _shown_later(self, ctx: EvaluatorContext) -> Shown:
        """Like `_shown`, but in a thread."""

        def start() -> asyncio.Task[Shown]:
            return asyncio.create_task(asyncio.to_thread(self._prompt.shown, ctx))

        shows = self._prompt.shows
        task = start() if shows is None else ctx.once((shows, "later"), start)
        # Shielded, because other evaluators may wait for the same task.
        return await asyncio.shield(task)


def _provenance(models: Sequence[JudgeModel], config: LlmJudge, prompt: Prompt) -> Provenance:
    found = Provenance.of_judges(
        Provenance(judge_models=(model.model,), calibration_card=model.calibration_card) for model in models
    )
    return found._replace(
        prompt_sha256=prompt.digest, calibration_card=config.calibration or found.calibration_card
    )


def _panel_members(config: LlmJudge, models: JudgeModels) -> Sequence[PanelMember]:
    members, problems = [], []
    for position, panelist in enumerate(config.judges or [Panelist(judge=config.judge, model=config.model)]):
        temperature = config.temperature if panelist.temperature is None else panelist.temperature
        try:
            members.append(PanelMember(models.get(panelist.judge, panelist.model), temperature))
        except ValueError as problem:
            problems.append(ConfigProblem(_judge_path(config, position), str(problem)))
    if problems:
        raise InvalidConfig(problems)
    return members


def _judge_path(config: LlmJudge, position: int) -> str:
    """Return the config path of the key that names the judge."""
    if config.judges is not None:
        return f"/judges/{position}"
    return "/judge" if config.judge is not None else "/model" if config.model is not None else ""


def _as_messages(request: PromptRequest) -> Mapping[str, Any]:
    """Return the messages of a request. Used when no answer contains the body that was sent."""
    return {
        "messages": [
            {"role": "system", "content": request.system_message},
            {"role": "user", "content": request.user_message},
        ]
    }


def _shorten_texts(data: Any) -> Any:
    """Return JSON-like data with long texts truncated."""
    if isinstance(data, Mapping):
        return {key: _shorten_texts(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_shorten_texts(value) for value in data]
    if isinstance(data, str) and len(data) > _MAX_RAW_TEXT:
        return f"{data[:_MAX_RAW_TEXT]}… ({len(data) - _MAX_RAW_TEXT} more characters)"
    return data
