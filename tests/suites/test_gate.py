"""Gates: which tier stops what, and that nothing asked is not a pass."""

from pathlib import Path

import pytest

from evald.v1 import suite_service_pb2
from evald_server.suites.comparison import compare, merge_by_id
from evald_server.suites.documents import InvalidDocument
from evald_server.suites.gate import GateRule, GateRuling, check_rule, decide, not_found, read_gate

from .results import case, suite


def _check(base: str, new: str, **rule: object) -> GateRuling:
    wanted = GateRule.model_validate({"suite": "checkout", **rule})
    sides = [[case(f"{n:03}", letter) for n, letter in enumerate(letters)] for letters in (base, new)]
    runs = [suite(cases) for cases in sides]
    comparison = None
    if wanted.max_drop is not None:
        comparison = compare(*runs, merge_by_id(*sides), wanted.max_drop)
    return check_rule(wanted, runs[1], comparison)


P40 = "P" * 40


@pytest.mark.parametrize(
    ("new", "rule", "wanted"),
    [
        pytest.param(P40, {"max_drop": 0.0}, "GO", id="equal"),
        pytest.param("P" * 36 + "FFFF", {"max_drop": 0.05}, "NO-GO", id="critical: perhaps by chance"),
        pytest.param(
            "P" * 36 + "FFFF", {"max_drop": 0.05, "tier": "supporting"}, "GO", id="supporting: by chance"
        ),
        pytest.param(
            "P" * 30 + "F" * 10, {"max_drop": 0.05, "tier": "supporting"}, "NO-GO", id="supporting: worse"
        ),
        pytest.param("P" * 30 + "E" * 10, {"max_drop": 0.05}, "INCONCLUSIVE", id="errors decide the drop"),
        pytest.param(
            "P" * 30 + "E" * 10, {"threshold": 0.8}, "INCONCLUSIVE", id="errors decide the pass rate"
        ),
        pytest.param("P" * 39 + "E", {"threshold": 0.8}, "GO", id="an error that cannot decide"),
        pytest.param(
            "P" * 39 + "E", {"threshold": 0.8, "max_error_rate": 0.02}, "INCONCLUSIVE", id="too many errors"
        ),
        pytest.param(
            "P" * 39 + "E", {"threshold": 0.8, "max_error_rate": 0.025}, "GO", id="as many as accepted"
        ),
        pytest.param(
            "P" * 71 + "E" * 29,
            {"threshold": 0.5, "max_error_rate": 0.29},
            "GO",
            id="as many as accepted, although 0.29 * 100 is below 29",
        ),
        pytest.param(
            "P" * 20 + "F" * 18 + "EE",
            {"threshold": 0.9, "max_error_rate": 0.05},
            "NO-GO",
            id="failed cases are part of the error rate's whole",
        ),
        pytest.param("P" * 20 + "F" * 20, {"threshold": 0.8}, "NO-GO", id="below the threshold"),
        pytest.param(P40, {"max_drop": 0.05, "min_pairs": 41}, "INCONCLUSIVE", id="too few pairs"),
        pytest.param(P40, {"max_drop": 0.05, "min_pairs": 40}, "GO", id="as many pairs as wanted"),
        pytest.param("E" * 40, {"threshold": 0.001}, "INCONCLUSIVE", id="everything in error"),
        pytest.param("S" * 40, {"threshold": 0.001}, "INCONCLUSIVE", id="everything skipped"),
        pytest.param(
            "P" * 20 + "F" * 18 + "EE",
            {"threshold": 0.9, "max_drop": 0.6},
            "NO-GO",
            id="one rule of two stops it",
        ),
    ],
)
def test_a_rule_decides(new: str, rule: dict[str, object], wanted: str) -> None:
    result = _check(P40, new, **rule)
    assert result.decision == wanted, result.reason
    assert result.reason


def test_a_run_that_did_not_complete_is_inconclusive() -> None:
    run = suite([case("a", "P")])
    run.status = suite_service_pb2.SUITE_RUN_STATUS_RUNNING
    assert check_rule(GateRule(suite="checkout", threshold=0.5), run, None).decision == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("letters", "weights", "threshold", "wanted"),
    [
        pytest.param("P" * 19 + "E", [1] * 19 + [100], 0.9, "INCONCLUSIVE", id="a heavy case in error"),
        pytest.param("P" * 19 + "E", [1] * 19 + [0.1], 0.97, "GO", id="a light case in error"),
        pytest.param("PP", [0, 0], 0.5, "INCONCLUSIVE", id="cases without weight"),
        pytest.param("PPP", [0.1, 0.2, 0.3], 1.0, "GO", id="fractions"),
        pytest.param("PF", [1e9, 1e-9], 1.0, "NO-GO", id="a failed case of the smallest weight"),
        pytest.param("PFE", [1e9, 1e-9, 7e8], 1.0, "NO-GO", id="the same beside an error"),
        pytest.param("PE", [1e9, 1e-9], 1.0, "INCONCLUSIVE", id="an error of the smallest weight"),
        pytest.param("PF", [1, 0], 1.0, "GO", id="a failed case without weight"),
    ],
)
def test_a_threshold_counts_cases_by_weight(
    letters: str, weights: list[float], threshold: float, wanted: str
) -> None:
    pairs = enumerate(zip(letters, weights, strict=True))
    run = suite(case(str(number), letter, weight=weight) for number, (letter, weight) in pairs)
    found = check_rule(GateRule(suite="checkout", threshold=threshold), run, None)
    assert found.decision == wanted, found.reason


@pytest.mark.parametrize(("threshold", "wanted"), [(0.9, "GO"), (0.95, "INCONCLUSIVE")])
def test_errors_count_in_runs_of_older_servers_too(threshold: float, wanted: str) -> None:
    run = suite(case(str(number), letter) for number, letter in enumerate("P" * 18 + "EE"))
    run.ClearField("error_share")
    assert check_rule(GateRule(suite="checkout", threshold=threshold), run, None).decision == wanted


def test_advisory_rules_have_no_say_and_missing_runs_do() -> None:
    go, stop = _check(P40, P40, max_drop=0), _check(P40, "F" * 40, max_drop=0, tier="advisory")
    assert stop.decision == "NO-GO"
    assert decide([go, stop]) == "GO"
    assert decide([stop]) == decide([]) == "INCONCLUSIVE"
    assert decide([go, not_found(go.rule)]) == "INCONCLUSIVE"
    assert decide([go, not_found(go.rule), _check(P40, "F" * 40, max_drop=0)]) == "NO-GO"


def test_a_gate_file_is_read_in_both_spellings(tmp_path: Path) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(
        "gates:\n  - suite: checkout\n    maxDrop: 0.02\n    min_pairs: 30\n"
        "  - {suite: tone, target: staging, tier: advisory, threshold: 0.9}\n"
    )
    first, second = read_gate(file)
    assert (first.suite, first.tier, first.max_drop, first.min_pairs) == ("checkout", "critical", 0.02, 30)
    assert second.applies_to(suite_service_pb2.SuiteRun(suite="tone", target="staging"))
    assert not second.applies_to(suite_service_pb2.SuiteRun(suite="tone", target="production"))
    assert first.applies_to(suite_service_pb2.SuiteRun(suite="checkout", target="anything"))
    assert not first.applies_to(suite_service_pb2.SuiteRun(suite="tone", target="anything"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gates: []", "1: gates: got []"),
        ("- suite: a", "1: got"),
        (
            "gates:\n  - suite: a\n    max_drip: 0.1",
            "3: gates[0].max_drip: unknown key; did you mean 'max_drop'?",
        ),
        ("gates:\n  - suite: a", "2: gates[0]: missing limit; wanted `threshold` or `max_drop`"),
        (
            "gates:\n  - {suite: a, threshold: 0.5, min_pairs: 9}",
            "2: gates[0].min_pairs: given without `max_drop`; wanted both",
        ),
        ("gates:\n  - {suite: a, threshold: 1.0}\ngate: 1", "3: gate: unknown key; did you mean 'gates'?"),
        ("gates:\n  - {suite: '', threshold: 1.0}", "2: gates[0].suite: got ''"),
        ("gates:\n  - suite: a\n    threshold: 1.01", "3: gates[0].threshold: got 1.01"),
        ("gates:\n  - suite: a\n    max_drop: 1.01", "3: gates[0].max_drop: got 1.01"),
        ("gates:\n  - suite: a\n    tier: urgent\n    threshold: 1.0", "3: gates[0].tier: got 'urgent'"),
        ("gates:\n  - {suite: a, tier: advisory, threshold: 1.0}", "1: gates: every rule is advisory"),
        ("gates:\n  - threshold: 0.5", "2: gates[0].suite: missing"),
        ("gates: [", "1"),
    ],
)
def test_a_gate_file_that_says_nothing_clear_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(text)
    with pytest.raises(InvalidDocument) as problem:
        read_gate(file)
    assert f"gate.yaml:{message}" in str(problem.value)
