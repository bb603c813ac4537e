"""Converts the cases of suite files to protobuf messages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from evald import Turn
from evald.chat import ROLES
from evald.connection import MAX_MESSAGE_BYTES
from evald.convert.context import fill_expected
from evald.convert.spec import fill_options, spec_to_pb
from evald.end_marks import END_MARKS
from evald.errors import InvalidInput
from evald.fields import read_keys, shown, text
from evald.messages import fill_messages, message_roles
from evald.structs import fill_struct
from evald.v1 import context_pb2, evaluator_pb2, suite_service_pb2

from .file_models import CaseEntry, SuiteEntry, TurnEntry
from .recorded_turns import (
    RECORDED_ERROR,
    USER_ROLES,
    recorded_error,
    turn_bounds,
    turn_usage,
)
from .recording import Questions, data_as_text
from .transcripts import MISSING, UNREADABLE, Transcripts

CRITERIA: Final = "criteria"
"""Name of the evaluator that a case's criteria add."""

# 64 KiB of a message are reserved for the fields around the case.
_MOST_BYTES: Final = MAX_MESSAGE_BYTES - (64 << 10)
_CRITERIA_KEYS: Final = {"success": "successCriteria", "failure": "failureCriteria"} | {
    f"{one}_criteria": f"{one}Criteria" for one in ("success", "failure")
}


class CaseShared(NamedTuple):
    """The data that all cases of a suite share.

    entry: the suite. evaluators: its specs. transcripts: recorded answers that replace those of the cases. asked:
    whether there is an agent to ask. ask_all: whether it is also asked for cases with recorded answers.
    """

    entry: SuiteEntry
    evaluators: Sequence[evaluator_pb2.EvaluatorSpec]
    transcripts: Transcripts | None
    asked: bool
    ask_all: bool


def specs_to_pb(evaluators: Sequence[Any], path: str = "evaluators") -> list[evaluator_pb2.EvaluatorSpec]:
    """Convert specs. Raises InvalidInput with the path of the invalid one."""
    found = []
    for index, one in enumerate(evaluators):
        where = f"{path}[{index}]"
        try:
            found.append(spec_to_pb(one, where))
        except InvalidInput as problem:
            if problem.path.startswith(where):
                raise
            raise problem.below(where) from None
    return found


class SentCase(NamedTuple):
    """A case as a message. unanswered: number of its recordings that end with a question."""

    pb: suite_service_pb2.SuiteCase
    unanswered: int


def case_to_pb(entry: CaseEntry, shared: CaseShared, *, empty: str = "") -> SentCase:
    """Convert a case. Raises InvalidInput.

    empty: FILE:LINE of an explicit null in place of its answer; "" without one.
    """
    pb = suite_service_pb2.SuiteCase(case_id=text(entry.id, "id"))
    pb.tags.extend(text(tag, f"tags[{index}]") for index, tag in enumerate(entry.tags))
    marks = (*END_MARKS, *shared.entry.end_marks)
    recorded = _fill_turns(entry, pb, marks)
    unanswered = 0
    _fill_evaluators(entry, shared, pb)
    if entry.weight != 1:
        pb.weight = entry.weight
    if entry.options:
        fill_options(entry.options, pb.options)
    if entry.metadata:
        fill_struct(entry.metadata, pb.metadata, "metadata")
    pb.trials, pb.min_passed = entry.trials or 0, entry.min_passed or 0
    if shared.transcripts is not None:
        unanswered = _fill_transcribed(shared, shared.transcripts, Questions(pb, marks), pb)
    elif not shared.ask_all:
        if not recorded and not shared.asked and _is_conversation(entry):
            # A recording whose last question has no answer.
            recorded, unanswered = [suite_service_pb2.RecordedTrial(answers=[context_pb2.Invocation()])], 1
        pb.recorded_trials.extend(recorded)
    trials = len(pb.recorded_trials)
    if not trials and not shared.asked:
        if not empty:
            raise InvalidInput(
                "", "no recorded answer and no target", "`output` in the case, or a target in the suite"
            )
        fail_case(pb, UNREADABLE, f"{empty}: the recorded answer is null", shared.entry)
    elif not trials and not pb.turns[0].input:
        raise InvalidInput("", "no input and no recorded answer", "`input`, `messages` or `turns`")
    _check_trials(shared.entry, trials, pb)
    if (size := pb.ByteSize()) > _MOST_BYTES:
        raise InvalidInput("", f"{size} bytes", f"at most {_MOST_BYTES}")
    return SentCase(pb, unanswered)


def fail_case(pb: suite_service_pb2.SuiteCase, code: str, message: str, suite: SuiteEntry) -> None:
    """Put a case in error, in all of its trials: none of them can give it a verdict."""
    count = max(len(pb.recorded_trials), _trials(suite, pb), pb.min_passed or suite.min_passed or 1)
    del pb.recorded_trials[:]
    error = {"code": code, "message": message.encode(errors="replace").decode()}
    pb.recorded_trials.extend(suite_service_pb2.RecordedTrial(error=error) for _ in range(count))


def _trials(suite: SuiteEntry, pb: suite_service_pb2.SuiteCase) -> int:
    return pb.trials or suite.trials or 1


def _check_trials(suite: SuiteEntry, recorded: int, pb: suite_service_pb2.SuiteCase) -> None:
    wanted = _trials(suite, pb)
    if recorded and recorded < wanted:
        raise InvalidInput(
            "trials",
            f"{wanted}, but the case has {recorded} recorded answer{'s' * (recorded > 1)}",
            f"{wanted} recorded answers, or `trials: {recorded}`",
        )
    needed, trials = pb.min_passed or suite.min_passed or 0, recorded or wanted
    if needed > trials:
        raise InvalidInput(
            "min_passed",
            f"{needed} of {trials} {'recorded answers' if recorded else 'trials'}",
            f"at most {trials}",
        )


def _is_conversation(entry: CaseEntry) -> bool:
    """Return whether the case is a conversation in which the agent has said something."""
    return entry.input is None and not entry.turns and "assistant" in message_roles(entry.messages)


def _fill_turns(
    entry: CaseEntry, pb: suite_service_pb2.SuiteCase, marks: Sequence[str]
) -> list[suite_service_pb2.RecordedTrial]:
    """Fill in the turns, and return the recorded trials."""
    if entry.turns:
        for key in ("input", "output", "outputs", "expected"):
            if getattr(entry, key):
                raise InvalidInput(
                    key, "given together with `turns`", f"`{key.rstrip('s')}` in each of the turns"
                )
        _fill_messages(entry.messages, pb.messages, "messages")
        return _fill_conversation(entry.turns, pb)
    turn = pb.turns.add()
    trials: list[suite_service_pb2.RecordedTrial] = []
    if entry.input is not None:
        _fill_messages(entry.messages, pb.messages, "messages")
        _fill_input(entry.input, turn.input, "input")
    elif entry.messages:
        trials = _split_conversation(entry.messages, pb, turn, marks)
    if entry.expected is not None:
        _fill_expected(entry.expected, turn.expected, "expected")
    if entry.output is not None and entry.outputs:
        raise InvalidInput("outputs", "given together with `output`", "one of the two")
    outputs = entry.outputs or ([] if entry.output is None else [entry.output])
    if outputs and trials:
        raise InvalidInput("output", "given together with messages that end with an answer", "one of the two")
    path = "outputs[{}]" if entry.outputs else "output"
    return trials or [_recorded_trial(one, path.format(index)) for index, one in enumerate(outputs)]


def _recorded_trial(output: Any, path: str) -> suite_service_pb2.RecordedTrial:
    """Convert a recorded answer, or `{error: TEXT}`."""
    if not (isinstance(output, Mapping) and "error" in output):
        return suite_service_pb2.RecordedTrial(answers=[invocation(output, path)])
    if len(output) > 1:
        other = next(key for key in output if key != "error")
        raise InvalidInput(f"{path}.{other}", "given together with `error`", "one of the two")
    error = recorded_error(output)
    if not error:
        raise InvalidInput(f"{path}.error", shown(output["error"]), "the reason why there is no answer")
    return suite_service_pb2.RecordedTrial(error={"code": RECORDED_ERROR, "message": error})


def _fill_conversation(
    turns: Sequence[TurnEntry], pb: suite_service_pb2.SuiteCase
) -> list[suite_service_pb2.RecordedTrial]:
    answers: list[context_pb2.Invocation] = []
    for index, one in enumerate(turns):
        path, turn = f"turns[{index}]", pb.turns.add()
        _fill_input(one.input, turn.input, f"{path}.input")
        if one.expected is not None:
            _fill_expected(one.expected, turn.expected, f"{path}.expected")
        if one.output is not None:
            answers.append(invocation(one.output, f"{path}.output"))
    if answers and len(answers) != len(turns):
        missing = next(index for index, one in enumerate(turns) if one.output is None)
        raise InvalidInput(
            f"turns[{missing}].output", "missing", "recorded answers for all turns, or for none"
        )
    return [suite_service_pb2.RecordedTrial(answers=answers)] if answers else []


def _split_conversation(
    messages: Sequence[Any],
    pb: suite_service_pb2.SuiteCase,
    turn: suite_service_pb2.SuiteTurn,
    marks: Sequence[str],
) -> list[suite_service_pb2.RecordedTrial]:
    """Fill in a conversation, whose last turn is the case's turn. Return its answer, if it has one."""
    roles = message_roles(messages)
    if "assistant" not in roles and "user" not in roles:
        raise InvalidInput("messages", "neither a user message nor an answer at the end", "one of them")
    start, end = turn_bounds(messages, marks)[-1]
    said = start
    while said < end and roles[said] in USER_ROLES:
        said += 1
    _fill_messages(messages[:start], pb.messages, "messages")
    _fill_messages(messages[start:said], turn.input, f"messages[{start}:]")
    if said == end:
        return []
    about = turn_usage(messages[start:end]).missing_in({})
    answer = invocation({"messages": list(messages[said:end]), **about}, f"messages[{said}:]")
    return [suite_service_pb2.RecordedTrial(answers=[answer])]


def _fill_input(value: Any, into: Any, path: str) -> None:
    if isinstance(value, str):
        into.add(role="user", text=text(value, path))
        return
    _fill_messages(value, into, path)
    if not into:
        raise InvalidInput(path, "no messages", "at least one message of the user")
    for index, one in enumerate(into):
        if one.role not in ROLES:
            raise InvalidInput(f"{path}[{index}].role", shown(one.role), f"one of {', '.join(ROLES)}")
        if one.role in USER_ROLES and one.WhichOneof("content") is None:
            raise InvalidInput(f"{path}[{index}].content", "missing", "text or content blocks")


def _fill_messages(messages: Any, into: Any, path: str) -> None:
    if messages:
        fill_messages(messages, into, path)


def _fill_expected(value: Any, pb: context_pb2.Expected, path: str) -> None:
    if isinstance(value, list):
        value = {"messages": value}
    try:
        fill_expected(value, pb)
    except InvalidInput as problem:
        raise InvalidInput(problem.path.replace("expected", path, 1), problem.got, problem.wanted) from None


def invocation(output: Any, path: str, *, whole: bool = False) -> context_pb2.Invocation:
    """Convert a recorded answer. Raises InvalidInput. whole: it may be a conversation without an answer."""
    output = data_as_text(output, path)
    if isinstance(output, str):
        pb = context_pb2.Invocation()
        pb.messages.add(role="assistant", text=text(output, path))
        return pb
    response: Any = output
    about: dict[str, Any] = {}
    if isinstance(output, Mapping) and "role" not in output and {"text", "messages"} & output.keys():
        about = {key: value for key, value in output.items() if key not in ("text", "messages")}
        response = data_as_text(output["text"], path) if "text" in output else output["messages"]
        if "text" in output and "messages" in output:
            raise InvalidInput(path, "`text` together with `messages`", "one of the two")
    if isinstance(response, list) and not response:
        raise InvalidInput(path, "no messages", "the agent's messages, including the text of its answer")
    try:
        context = Turn.from_dict({"response": response, "last_invocation": about}).to_proto()
    except InvalidInput as problem:
        inner = problem.path.removeprefix("last_invocation.").removeprefix("response").removeprefix(".")
        raise InvalidInput(inner, problem.got, problem.wanted).below(path) from None
    pb = context.last_invocation
    if not pb.messages:
        pb.messages.extend(context.messages)
    if all(one.role != "assistant" for one in pb.messages) and not whole:
        raise InvalidInput(path, "no message of the agent", 'one with the role "assistant"')
    return pb


def _fill_transcribed(
    shared: CaseShared, transcripts: Transcripts, questions: Questions, pb: suite_service_pb2.SuiteCase
) -> int:
    """Fill in the recorded trials, or the error of the case. Return how many of them end unanswered."""
    found = transcripts.of(pb.case_id, questions)
    whole = questions.last is None
    broken = next((one.error for one in found if one.is_unusable), None)
    for one in found:
        trial = pb.recorded_trials.add()
        if one.error:
            trial.error.code, trial.error.message = one.error
        try:
            trial.answers.extend(invocation(answer, "output", whole=whole) for answer in one.answers)
        except InvalidInput as problem:
            broken = broken or (UNREADABLE, f"{one.place}: {problem}")
    wanted = _trials(shared.entry, pb)
    if len(found) < wanted and (not found or transcripts.has_unreadable):
        transcripts.lacking += 1
        missing = f"{len(found)} of {wanted} transcripts" if found else "no transcript"
        broken = broken or (MISSING, f"{missing}; wanted a row with the id or the input of the case")
    if broken:
        fail_case(pb, *broken, shared.entry)
        return 0
    return sum(one.unanswered for one in found)


def _fill_evaluators(entry: CaseEntry, shared: CaseShared, pb: suite_service_pb2.SuiteCase) -> None:
    """Fill in the evaluators of the turns: the lists of the suite, the case and the turn become one."""
    own = [*specs_to_pb(entry.evaluators), *_criteria(entry.criteria, "criteria")]
    of_suite: Iterable[evaluator_pb2.EvaluatorSpec] = shared.evaluators if entry.inherit else ()
    if own or (not entry.inherit and shared.evaluators):
        pb.evaluators.extend([*of_suite, *own])
    for index, one in enumerate(entry.turns):
        path = f"turns[{index}]"
        specs = [
            *specs_to_pb(one.evaluators, f"{path}.evaluators"),
            *_criteria(one.criteria, f"{path}.criteria"),
        ]
        if index < len(entry.turns) - 1:
            _check_not_final(specs, f"{path}.evaluators")
        if specs and index == len(entry.turns) - 1:
            specs = [*of_suite, *own, *specs]
        pb.turns[index].evaluators.extend(specs)
    last = pb.turns[-1].evaluators or pb.evaluators or of_suite
    if not last and not entry.inherit and shared.evaluators:
        raise InvalidInput(
            "inherit",
            "false, but the case has no evaluators for the last turn",
            "at least one evaluator in the case",
        )
    if not last and not any(turn.evaluators for turn in pb.turns):
        raise InvalidInput(
            "",
            "no evaluators",
            "`evaluators` or `criteria`, in the case or the suite; evald types lists them",
        )


def _check_not_final(specs: Iterable[evaluator_pb2.EvaluatorSpec], path: str) -> None:
    """Check the evaluators of a turn that is not the last one. Raises InvalidInput for one that would never run."""
    for index, spec in enumerate(specs):
        if spec.turn_policy == evaluator_pb2.TURN_POLICY_FINAL_TURN:
            raise InvalidInput(
                f"{path}[{index}].when",
                "final, on a turn that is not the last one of the case, so it would never run",
                "`when: every_turn` (the default) here, or this evaluator on the last turn",
            )


def evaluator_paths(entry: CaseEntry, shared: CaseShared) -> list[tuple[str | int, ...]]:
    """Return the path in the entry of each evaluator of a case's message, in the same order; () for the suite's."""
    of_suite: list[tuple[str | int, ...]] = [()] * (len(shared.evaluators) if entry.inherit else 0)
    own = _own_paths(entry)
    found = [*of_suite, *own] if own or (not entry.inherit and shared.evaluators) else []
    for index, turn in enumerate(entry.turns):
        its: list[tuple[str | int, ...]] = [("turns", index, *path) for path in _own_paths(turn)]
        found += [*of_suite, *own, *its] if its and index == len(entry.turns) - 1 else its
    return found


def _own_paths(entry: CaseEntry | TurnEntry) -> list[tuple[str | int, ...]]:
    paths: list[tuple[str | int, ...]] = [("evaluators", index) for index in range(len(entry.evaluators))]
    return paths if entry.criteria is None else [*paths, ("criteria",)]


def _criteria(criteria: Any, path: str) -> list[evaluator_pb2.EvaluatorSpec]:
    if criteria is None:
        return []
    if isinstance(criteria, str):
        criteria = {"success": criteria}
    config = read_keys(criteria, _CRITERIA_KEYS, path)
    for key, value in config.items():
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(path, f"{key}: {shown(value)}", "text")
    if not config:
        raise InvalidInput(path, "no criteria", "`success` or `failure`")
    return [spec_to_pb({"type": "llm-judge", "name": CRITERIA, "config": config}, path)]
