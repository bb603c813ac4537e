"""AgentV: assertions with `score` and `verdict`, suites by weighted mean, and promptfoo's assertions.

What its assertions list as passed and failed is compared as evald's checks where evald has checks.
The verdict "skip" of an evaluator that broke is an error.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evald.evaluator import EvaluatorDefinition
from evald.result import Result, Verdict, errored
from evald.spec import Options
from evald.turn import Turn
from evald.v1.suite_service_pb2 import TrialResult
from evald_server.config import Settings
from evald_server.suites.documents import InvalidDocument
from evald_server.suites.suite_file import load_suites
from evald_server.suites.verdicts import decide_trial

from ...isolation import ISOLATION
from ..figures import Figures, case_figures, mean_figures
from ..replay import (
    ERROR,
    FAILED,
    PASSED,
    Call,
    Case,
    Difference,
    Expect,
    Outcome,
    Spec,
    Vector,
    Wanted,
    answered,
    called,
    refused,
    says,
    scripted,
    unparseable,
)
from . import promptfoo

_NO_MODEL_CALLS = "a context does not say how many model calls the agent made"
_LIMITS = "execution-limits: tool calls, tokens, cost, duration and turns; unknown config keys are refused"

_ASKED_OFTEN = Difference(
    "they ask up to four times, the last time with what was wrong",
    "llm-judge: one re-ask that says what was wrong, then an error",
    unparseable(),
)
_NOT_ZERO = Difference(
    "there an answer that cannot be used is a score of 0",
    "llm-judge: an unusable answer is an error: never a 0, never a pass",
    unparseable(),
)

_NO_JAVASCRIPT = Difference(
    "there JavaScript of the suite runs inside the test runner",
    "what evald has no counterpart for is refused before anything runs, with the reason",
    refused("javascript is not supported: it runs code of the suite in the test runner"),
)
_NO_SKILLS = Difference(
    "there a coding agent's skills are in the metadata of its answers",
    "what evald has no counterpart for is refused before anything runs, with the reason",
    refused("evald reads tool calls, not a coding agent's skills"),
)

DIFFERENCES = {
    "AV-275": Difference(
        "there the score of a case that needs one pass is that of its best trial",
        "the score of a case is the mean of its trials; whether enough of them passed is its verdict",
        Expect(run={"verdict": PASSED, "score": 0.7, "passed": 1, "trials": 2}),
    ),
    "AV-285": Difference(
        "there a single trial has an interval without width",
        "estimate_mean: Wilson's interval, which has a width however few the cases are",
        Expect(run={"mean": 0.85, "low": 0.15005233859515843, "high": 0.9945321814689079}),
    ),
    "AV-021": Difference(
        "there a threshold of 0 passes whatever the children say",
        "at-least: k and threshold are above 0, because what always passes checks nothing",
        refused("threshold", "greater than 0"),
    ),
    "AV-034": Difference(
        "there the score of a conversation is that of its worst turn",
        "a trial has the score of the last turn that was evaluated, and fails with any of its turns",
        Expect(run={"verdict": FAILED, "score": 0.8}),
    ),
    "AV-040": Difference(
        "there a turn without assertions passes",
        "a case without anything to check is refused",
        refused("no evaluators; wanted"),
    ),
    **dict.fromkeys(("AV-170", "AV-172"), _NO_JAVASCRIPT),
    **dict.fromkeys(("AV-195", "AV-200", "AV-201", "AV-202", "AV-204", "AV-205"), _NO_SKILLS),
    "AV-045": Difference(
        "the answers on record hold a score, but the run on record did not get them",
        "llm-judge: a usable answer is used",
        says(False, 0.5),
    ),
    "AV-084": Difference(
        "their rubric items may have scales of their own",
        "llm-judge: an item is met or not; a scale from 0 to 10 is a rubric",
        refused("scoreRanges", "unknown key"),
    ),
    "AV-098": _ASKED_OFTEN,
    "AVS-003": _NOT_ZERO,
    "AVS-004": _NOT_ZERO,
    "AV-048": Difference(_NO_MODEL_CALLS, _LIMITS, refused("maxLlmCalls", "unknown key")),
    "AV-056": Difference(
        "they know by name which tools of a coding agent explore and which change",
        _LIMITS,
        refused("targetExplorationRatio", "unknown key"),
    ),
    "AV-057": Difference(
        "they know by name which tools of a coding agent explore and which change",
        _LIMITS,
        refused("targetExplorationRatio", "unknown key"),
    ),
    "AV-060": Difference(_NO_MODEL_CALLS, _LIMITS, refused("maxLlmCalls", "unknown key")),
    "AV-071": Difference(
        "there an evaluator that broke makes the whole score 0",
        "an error is never a 0: the verdict is an error, and the mean is that of the others",
        Expect(
            (Wanted(PASSED, score=1), Wanted(ERROR)),
            Wanted(ERROR, success=False, score=1),
        ),
    ),
    "AV-130": Difference(
        "there a score out of range is clamped",
        "a score out of 0 to 1 breaks the contract: an error, never averaged, never passed on",
        Expect((Wanted(ERROR, error="CONTRACT_VIOLATION"),), Wanted(ERROR)),
    ),
    "AV-219": Difference(
        "they scan forward, and a missing tool uses the rest of the calls up",
        "trajectory: pairing is optimal, by longest common subsequence, never greedy",
        says(False, 2 / 3),
    ),
    "AV-221": Difference(
        "there an extra call is noted in the assertions, but neither score nor verdict tell",
        "trajectory: an exact sequence has no extra calls",
        says(False, 1),
    ),
    "AV-258": Difference(
        "no calls are a part of any calls there",
        "trajectory: when exactly one side is empty the score is 0, in every mode",
        says(False, 0),
    ),
    "AV-185": Difference(
        "there a script that prints nothing passes by its exit code",
        "a script that prints no JSON has said nothing: an error, never a pass",
        Expect((Wanted(ERROR, unscored=True, error="SCRIPT_OUTPUT_INVALID"),)),
    ),
    "AV-187": Difference(
        "there a script that prints plain text passes by its exit code",
        "a script that prints no JSON has said nothing: an error, never a pass",
        Expect((Wanted(ERROR, unscored=True, error="SCRIPT_OUTPUT_INVALID"),)),
    ),
    "AV-194": Difference(
        "there a script that breaks fails with score 0",
        "a script that exits with an error gives no verdict, and the error shows what it wrote to stderr",
        Expect(
            (
                Wanted(
                    ERROR, unscored=True, error="SCRIPT_FAILED", reason="The script exited with code 1: bad"
                ),
            )
        ),
    ),
    "AVS-019": Difference(
        "there the output of a script that exits with an error counts, unless it wrote to stderr",
        "a script that exits with an error gives no verdict",
        Expect((Wanted(ERROR, unscored=True, error="SCRIPT_FAILED"),)),
    ),
    "AVS-026": Difference(
        "the mean of no scores is 0 there",
        "a call without any evaluator is refused: nothing asked must not look like a verdict",
        refused("at least one evaluator"),
    ),
    "AVS-029": Difference(
        "there an unknown evaluator falls back to the judge",
        "an unknown type refuses the call, with the known types in the message",
        refused('unknown evaluator type "does_not_exist"', "Known types: ", "llm-judge"),
    ),
}

_WEIGHTED_MEAN = Options(aggregation="weighted_mean")

_VERDICTS = {"pass": Verdict.PASSED, "fail": Verdict.FAILED}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    kind = vector["evaluator"]
    match kind:
        case "conversation":
            return Case(partial(_converse, vector), _conversed(vector["expected"]))
        case "skill-used" | "not-skill-used":
            test = {"id": "a", "input": "x", "evaluators": [vector["config"]]}
            return Case(partial(_read, test), _says(vector["expected"]))
        case "suite:weighted_mean":
            return _suite(vector)
        case "aggregate:trials":
            return _trials(vector)
        case "aggregate:average":
            return _average(vector)
        case "registry:lookup":
            return _lookup(vector)
        case "composite" | "assert-set":
            return _set(vector)
        case "modifier:negate":
            return _negated(vector)
        case "inline-assert":
            call = Call([{"type": "inline"}], answered("output"), plugins=[scripted("inline", _clamped())])
            return Case(call, says(True, 1))
        case "tool-trajectory":
            return _trajectory(vector)
        case "field-accuracy":
            return _field_accuracy(vector)
        case "llm_judge" | "llm-grader" | "llm-rubric":
            return _judge(vector)
        case "code" | "script":
            return _script(vector)
        case "execution-metrics" | "latency" | "cost" | "token-usage":
            return _measured(vector)
    return _promptfoo(vector)


def _read(test: Vector) -> Any:
    """Return the case of a suite with one test, or the refusal."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "suite.json"
        path.write_text(json.dumps({"tests": [test]}))
        try:
            (suite,) = load_suites([path], targets=["t"])
        except InvalidDocument as problem:
            return Outcome(refused=str(problem))
    return next(iter(suite.cases))


def _converse(vector: Vector) -> Outcome:
    """Read the suite, and play its turns with the scores on record."""
    case = _read({"id": "a", "mode": "conversation", **vector["config"]})
    if isinstance(case, Outcome):
        return case
    trial = TrialResult(trial=1)
    seen = vector["context"]["grader_scores_observed"]
    for number, (turn, score) in enumerate(zip(case.turns, seen, strict=True), 1):
        specs = turn.evaluators or case.evaluators
        made = [scripted(f"judge-{index}", _judged(score)) for index in range(len(specs))]
        summary = Call(
            [{"type": one.type} for one in made], answered("x"), _WEIGHTED_MEAN, plugins=made
        )().summary
        assert summary is not None
        trial.turns.add(turn=number).evaluation.CopyFrom(summary)
    decide_trial(trial)
    return Outcome(run={"verdict": Verdict(trial.verdict), "score": trial.score})


def _conversed(expected: Vector) -> Expect:
    passes = expected["executionStatus"] == "ok"
    return Expect(run={"verdict": PASSED if passes else FAILED, "score": expected["score"]})


def _script(vector: Vector) -> Case:
    """Run a script of AgentV, which names its shell or is a shell command."""
    spec = {"type": vector["evaluator"], "config": vector["config"]}
    call = Call(
        [spec],
        answered(vector["context"]["candidate"]),
        scripts=Settings(code_isolation=ISOLATION, code_allow=["/bin/bash"], code_shell=True),
    )
    return Case(call, _says(vector["expected"]))


def _promptfoo(vector: Vector) -> Case:
    try:
        return _assertion(vector)
    except InvalidDocument as problem:
        return Case(partial(Outcome, refused=str(problem)), _says(vector["expected"]))


def _assertion(vector: Vector) -> Case:
    kind, config, given, expected = (vector[key] for key in ("evaluator", "config", "context", "expected"))
    if "trace" in given:
        calls = [
            {"name": event["tool"]["name"], "args": event["tool"]["input"]}
            for event in given["trace"]["events"]
            if event["type"] == "tool_call"
        ]
        turn = called(calls, given["candidate"])
    else:
        turn = answered(given["candidate"])
    if kind == "trajectory:step-count":
        spec: Spec = {
            "type": "tool-call-budget",
            "config": {"minCalls": config["value"]["min"], "scope": "conversation"},
        }
    else:
        spec = promptfoo.assertion(f"not-{kind}" if config.get("inverse") else kind, config)
    return Case(Call([spec], turn), _says(expected))


def _says(expected: Vector, **more: Any) -> Expect:
    """Compare only the score, which is all that AgentV's string assertions have."""
    verdict = _VERDICTS[expected["verdict"]] if "verdict" in expected else None
    passes = expected["score"] == 1 if verdict is None else verdict is PASSED
    return says(passes, expected["score"], **more)


def _measured(vector: Vector) -> Case:
    kind, config, given, expected = (vector[key] for key in ("evaluator", "config", "context", "expected"))
    limits = {_camel(key): value for key, value in config.items() if key not in ("name", "type")}
    if kind == "latency":
        limits = {"maxMs": limits["threshold"], "scoreFormula": "binary"}
    elif kind == "cost":
        limits = {"maxUsd": limits["budget"], "scoreFormula": "binary"}
    counts = given.get("trace", {}).get("toolCalls", {})
    calls = [{"name": name, "args": {}} for name, count in counts.items() for _ in range(count)]
    turn = called(
        calls,
        latency_ms=given.get("durationMs"),
        run_duration_ms=given.get("durationMs"),
        usage=given.get("tokenUsage"),
        cost_usd=given.get("costUsd"),
    )
    if not given:
        turn = Turn()
    met = [one["passed"] for one in expected["assertions"]]
    more = {"met": (sum(met), len(met))} if kind == "execution-metrics" and given else {}
    return Case(Call([{"type": kind, "config": limits}], turn), _says(expected, **more))


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _trajectory(vector: Vector) -> Case:
    config, given, expected = (vector[key] for key in ("config", "context", "expected"))
    if "minimums" in config:
        wanted = [{"name": name, "minCalls": least} for name, least in config["minimums"].items()]
        spec = {"type": "tool-use", "config": {"expectations": wanted}}
    else:
        evald_config = {
            "mode": config["mode"],
            "expected": config["expected"],
            "argsMatch": config.get("argsMatch", "exact"),
            "score": "mode" if config["mode"] == "subset" else "recall",
        }
        spec = {"type": "tool-trajectory", "config": evald_config}
    if "output" in given:
        calls = [_call(call) for message in given["output"] for call in message["toolCalls"]]
    else:
        counts = given["trace"]["toolCalls"]
        calls = [{"tool": name, "input": {}} for name, count in counts.items() for _ in range(count)]
    return Case(Call([spec], called(calls)), _says(expected))


def _call(call: Vector) -> dict[str, Any]:
    kept = {"tool": call["tool"], "input": call.get("input", {})}
    return kept if "durationMs" not in call else {**kept, "duration_ms": call["durationMs"]}


def _field_accuracy(vector: Vector) -> Case:
    config, given, expected = (vector[key] for key in ("config", "context", "expected"))
    (reference,) = given["expected_output"]
    spec = {"type": "field-accuracy", "config": {"fields": config["fields"]}}
    turn = answered(given["candidate"], expected={"data": reference["content"]})
    return Case(Call([spec], turn), _says(expected))


def _negated(vector: Vector) -> Case:
    inner = vector["context"]["inner_result"]
    result = Result(_VERDICTS[inner["verdict"]], "inner", inner["score"], metadata=inner["details"])
    call = Call(
        [{"type": "inner", "negate": vector["config"]["negate"]}],
        answered("output"),
        plugins=[scripted("inner", result)],
    )
    return Case(call, _says(vector["expected"], metadata=vector["expected"]["details"]))


def _clamped() -> Result:
    return Result(Verdict.PASSED, "clamped", 1.5)


# Their early judge takes the criteria from the case, which the record leaves out.
_CRITERIA = "The task is done"


def _judge(vector: Vector) -> Case:
    config, given, expected = (vector[key] for key in ("config", "context", "expected"))
    evald_config: dict[str, Any] = {"criteria": config.get("value", given.get("criteria", _CRITERIA))}
    if "rubrics" in config:
        evald_config = {"items": [_item(one) for one in config["rubrics"]]}
    if "prompt" in config:
        evald_config["prompt"] = config["prompt"]
    evald_config |= config.get("config", {})
    turn = Turn(
        [
            {"role": "user", "content": given.get("question", "?")},
            {"role": "assistant", "content": given["candidate"]},
        ],
        expected=given.get("reference_answer"),
    )
    spec = {
        "type": "quality" if vector["evaluator"] == "llm-grader" else vector["evaluator"],
        "config": evald_config,
    }
    call = Call([spec], turn, judge=vector.get("judge_responses"))
    if "error" in expected:
        return Case(call, refused('no judge "default"'))
    if expected.get("verdict") == "skip":
        return Case(call, Expect((Wanted(ERROR, error="JUDGE_UNPARSEABLE", unscored=True),)))
    if "assertions" in expected:
        met = [one["passed"] for one in expected["assertions"]]
        passes = expected["verdict"] == "pass"
    else:
        met = [*(True for _ in expected["hits"]), *(False for _ in expected["misses"])]
        passes = expected["score"] >= 0.8
    wanted = {"reason": expected["reasoning"]} if "reasoning" in expected else {}
    return Case(call, says(passes, expected["score"], met=(sum(met), len(met)), **wanted))


def _item(one: Vector) -> dict[str, Any]:
    text = one["outcome"]
    if one.get("operator") == "contradiction":
        text = f"Does not contradict: {text}"
    kept = {_camel(key): value for key, value in one.items() if key not in ("outcome", "operator")}
    return {**kept, "text": text}


def _member(result: Vector) -> EvaluatorDefinition:
    return scripted(
        f"member-{result['name']}", Result(_VERDICTS[result["verdict"]], result["name"], result["score"])
    )


def _set(vector: Vector) -> Case:
    """A threshold of a composite is a share of children, one of an assert-set is a mean score."""
    kind, config, given, expected = (vector[key] for key in ("evaluator", "config", "context", "expected"))
    results = {result["name"]: result for result in given["member_results"]}
    children: list[Spec] = []
    plugins = []
    for child in config["assertions"]:
        if child["type"] in ("latency", "javascript"):
            plugins.append(_member(results[child["name"]]))
            children.append({"type": f"member-{child['name']}", "name": child["name"]})
        else:
            children.append({**promptfoo.assertion(child["type"], child), "name": child["name"]})
    evald_config: dict[str, Any] = {"evaluators": children}
    threshold = config["aggregator"]["threshold"] if kind == "composite" else config.get("threshold")
    if threshold is not None:
        evald_config["threshold"] = threshold
    spec = {"type": "at-least" if kind == "composite" else "assert-set", "config": evald_config}
    passed = sum(result["verdict"] == "pass" for result in results.values())
    call = Call([spec], answered(given["candidate"]), plugins=plugins)
    return Case(call, _says(expected, met=(passed, len(results))))


def _average(vector: Vector) -> Case:
    scores = vector["context"]["scores"]
    plugins = [
        scripted(f"score-{index}", Result(Verdict.PASSED, "scored", score))
        for index, score in enumerate(scores)
    ]
    call = Call([{"type": one.type} for one in plugins], answered("ok"), _WEIGHTED_MEAN, plugins=plugins)
    return Case(call, Expect(summary=Wanted(score=vector["expected"]["score"])))


def _lookup(vector: Vector) -> Case:
    config, expected = vector["config"], vector["expected"]
    plugins = [scripted(name.replace("_", "-"), True) for name in config["registry"]]
    call = Call([{"type": config["kind"]}], answered("ok"), plugins=plugins, only_plugins=True)
    if "error" in expected:
        return Case(call, refused(f'unknown evaluator type "{config["kind"]}"'))
    return Case(call, Expect((Wanted(PASSED),)))


def _suite(vector: Vector) -> Case:
    """Return a suite of assertions; its judges give the recorded answers."""
    config, given, expected = (vector[key] for key in ("config", "context", "expected"))
    recorded = {score["name"]: score for score in expected["scores"]}
    specs: list[Spec] = []
    plugins = []
    for one in config["assertions"]:
        name = one["name"]
        if one["type"] == "llm-grader":
            plugins.append(scripted(f"judge-{name}", _judged(recorded[name])))
            spec: Mapping[str, Any] = {"type": f"judge-{name}"}
        else:
            spec = promptfoo.assertion(one["type"], one)
        common = {key: one[key] for key in ("weight", "required") if key in one}
        specs.append({**spec, **common, "name": name})
    results = tuple(
        Wanted(_VERDICTS.get(score["verdict"], ERROR), score=score["score"]) for score in expected["scores"]
    )
    passes = expected["executionStatus"] == "ok"
    summary = Wanted(PASSED if passes else FAILED, score=expected["score"])
    call = Call(specs, answered(given["candidate"]), _WEIGHTED_MEAN, plugins=plugins)
    return Case(call, Expect(results, summary))


def _judged(recorded: Vector) -> Result:
    if recorded["verdict"] == "skip":
        return errored("JUDGE_UNPARSEABLE", "The judge's answer holds no verdict")
    return Result(_VERDICTS[recorded["verdict"]], "judged", recorded["score"])


def _trials(vector: Vector) -> Case:
    """`pass_any` is one trial that must pass; the other strategies are about scores alone."""
    strategy, expected = vector["config"]["strategy"], vector["expected"]["aggregation"]
    trials = [(trial["score"], trial["verdict"] == "pass") for trial in vector["context"]["trials"]]
    if strategy == "confidence_interval":
        wanted = {"mean": expected["mean"], "low": expected["ci95Lower"], "high": expected["ci95Upper"]}
        return Case(Figures(lambda: mean_figures([score for score, _ in trials])), Expect(run=wanted))
    run: dict[str, Any] = {"score": vector["expected"]["score"]}
    if strategy == "pass_any":
        passed = expected["passedAttempts"]
        verdict = PASSED if passed else FAILED
        run |= {"passed": passed, "trials": expected["totalAttempts"], "verdict": verdict}
    return Case(Figures(lambda: case_figures(trials, 1)), Expect(run=run))
