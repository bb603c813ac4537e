"""`evald compare`: files and stored suite runs, verdicts as exit codes, gates, reports."""

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from tests.rpc.suite_floor import opened, play, recorded
from tests.suites.results import case, suite

from evald.v1 import suite_service_pb2_grpc
from evald_server.cli.server_connection import serving
from evald_server.suites.reports.json_files import write_json, write_jsonl
from evald_server.suites.reports.report import SuiteReport

Pair = Callable[..., tuple[str, str]]


def _write(path: Path, letters: str, target: str = "staging") -> str:
    cases = [case(f"case-{number:02}", letter) for number, letter in enumerate(letters)]
    run = suite(cases)
    run.target = target
    with path.open("w", encoding="utf-8") as stream:
        (write_jsonl if path.suffix == ".jsonl" else write_json)([SuiteReport(run, cases)], stream)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> Pair:
    """Writes two files of results."""

    def write(base: str, new: str, suffix: str = ".json") -> tuple[str, str]:
        return _write(tmp_path / f"base{suffix}", base), _write(tmp_path / f"new{suffix}", new)

    return write


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize(
    ("new", "verdict", "code"),
    [
        ("P" * 20, "PASS", 0),
        ("P" * 17 + "FFF", "WARN", 0),
        ("P" * 12 + "F" * 8, "BLOCK", 1),
        ("P" * 17 + "EEE", "INCONCLUSIVE", 3),
    ],
)
def test_the_verdict_is_the_exit_code(
    evald: Any, files: Pair, suffix: str, new: str, verdict: str, code: int
) -> None:
    done = evald("compare", *files("P" * 20, new, suffix))
    assert done.returncode == code, done.stderr
    assert f" {verdict}  Pass rate" in done.stdout


def test_changed_cases_come_first_and_figures_say_what_they_mean(evald: Any, files: Pair) -> None:
    shown = evald("compare", *files("P" * 19 + "F", "P" * 12 + "F" * 7 + "P")).stdout
    assert shown.index("BLOCK") < shown.index("case-12") < shown.index("case-19") < shown.index("McNemar p")
    for text in ("7, 1", "change in percentage points, with its 95 % interval", "detectable drop", "turn F"):
        assert text in shown


def test_json_and_reports_hold_the_comparison(evald: Any, files: Pair, tmp_path: Path) -> None:
    markdown, data = tmp_path / "comparison.md", tmp_path / "comparison.json"
    done = evald(
        "compare",
        *files("P" * 20, "P" * 12 + "F" * 8),
        "--json",
        "--output",
        str(markdown),
        "--output",
        str(data),
    )
    shown = json.loads(done.stdout)
    assert shown == json.loads(data.read_text())
    [comparison] = shown["comparisons"]
    assert (shown["exitCode"], comparison["verdict"]) == (1, "COMPARISON_VERDICT_BLOCK")
    assert (comparison["pairCount"], comparison["brokenCount"]) == ("20", "8")
    assert "BLOCK" in markdown.read_text()


def test_names_in_the_json_of_a_comparison_cannot_steer_the_terminal(evald: Any, tmp_path: Path) -> None:
    paths = [_write(tmp_path / f"{name}.json", "P" * 20, "\x9b2J\u202e") for name in ("base", "new")]
    done = evald("compare", *paths, "--json")
    assert json.loads(done.stdout)["comparisons"][0]["new"]["target"] == "\x9b2J\u202e"
    assert "\x9b" not in done.stdout
    assert "\u202e" not in done.stdout


def test_max_drop_moves_the_line(evald: Any, files: Pair) -> None:
    assert evald("compare", *files("P" * 20, "P" * 12 + "F" * 8), "--max-drop", "0.5").returncode == 0


def test_a_gate_decides_by_its_rules(evald: Any, files: Pair, tmp_path: Path) -> None:
    gate, markdown = tmp_path / "gate.yaml", tmp_path / "gate.md"
    both = files("P" * 20, "P" * 17 + "FFF")

    def decided(text: str) -> tuple[int, str]:
        gate.write_text(f"gates:\n{text}")
        done = evald("compare", *both, "--gate", str(gate), "--output", str(markdown))
        assert not done.stderr
        return done.returncode, done.stdout.splitlines()[-1]

    assert decided("  - {suite: checkout, max_drop: 0.05}") == (1, "NO-GO")
    assert "### NO-GO" in markdown.read_text()
    assert decided("  - {suite: checkout, max_drop: 0.05, target: staging}") == (1, "NO-GO")
    assert "| <code>checkout/staging</code> | " in markdown.read_text()
    assert decided("  - {suite: checkout, max_drop: 0.05, tier: supporting}") == (0, "GO")
    assert decided("  - {suite: checkout, threshold: 0.8}") == (0, "GO")
    assert decided("  - {suite: checkout, threshold: 0.8, target: production}") == (3, "INCONCLUSIVE")
    assert decided("  - {suite: checkout, threshold: 0.8}\n  - {suite: tone, threshold: 0.8}") == (
        3,
        "INCONCLUSIVE",
    )


def test_targets_of_several_suite_runs_are_paired_by_name(evald: Any, tmp_path: Path) -> None:
    for side, letters in (("base", ("P" * 20, "P" * 20)), ("new", ("P" * 20, "F" * 20))):
        with (tmp_path / f"{side}.jsonl").open("w") as whole:
            for target, text in zip("ab", letters, strict=True):
                whole.write(Path(_write(tmp_path / "one.jsonl", text, target)).read_text())
    done = evald("compare", str(tmp_path / "base.jsonl"), str(tmp_path / "new.jsonl"))
    assert done.returncode == 1
    assert "checkout/a  ✓ PASS" in done.stdout
    assert "checkout/b  ✗ BLOCK" in done.stdout


def _results(path: Path, *runs: tuple[str, str, str]) -> str:
    """Write a file of several suite runs: suite, target, and a letter for each case."""
    reports = []
    for name, target, letters in runs:
        cases = [case(f"case-{number:02}", letter) for number, letter in enumerate(letters)]
        run = suite(cases)
        run.suite, run.target = name, target
        reports.append(SuiteReport(run, cases))
    with path.open("w", encoding="utf-8") as stream:
        write_json(reports, stream)
    return str(path)


GOOD, BAD = "P" * 20, "P" * 12 + "F" * 8
RUNS = {
    "base": (("shop", "a", GOOD), ("shop", "b", GOOD), ("tone", "a", GOOD), ("Old", "a", GOOD)),
    "new": (("shop", "a", GOOD), ("shop", "b", BAD), ("tone", "a", BAD), ("fresh", "a", GOOD)),
}
FILTERS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "all": ((), 1, "shop/b  ✗ BLOCK"),
    "a target": (("--target", "a"), 1, "tone/a  ✗ BLOCK"),
    "a suite": (("--suite", "shop"), 1, "shop/b  ✗ BLOCK"),
    "a suite and a target": (("--suite", "shop", "--target", "a"), 0, "shop/a  ✓ PASS"),
    "two suites": (
        ("--suite", "shop", "--suite", "fresh", "--target", "a"),
        3,
        "has no suite run of fresh a",
    ),
    "gone from the new": (("--suite", "Old"), 3, "The new file has no suite run of Old a; it has none"),
    "no such suite": (
        ("--suite", "shops"),
        2,
        "--suite shops: neither file has such a suite run; they have shop a,",
    ),
    "another case": (("--suite", "Shop"), 2, "neither file has such a suite run"),
    "one of two": (("--suite", "shop", "--suite", "old"), 2, "--suite old: neither file"),
    "no such target": (("--target", "c"), 2, "--target c: neither file"),
    "not both": (("--suite", "tone", "--target", "b"), 2, "--suite tone --target b: neither file"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_files_are_compared_by_suite_and_target_as_far_as_they_are_named(
    evald: Any, tmp_path: Path, name: str
) -> None:
    options, code, words = FILTERS[name]
    files = [_results(tmp_path / f"{side}.json", *runs) for side, runs in RUNS.items()]
    done = evald("compare", *files, *options)
    said = " ".join((done.stdout + done.stderr).split(" "))
    assert (done.returncode, words in said) == (code, True), said
    if "--target" in options and code != 2:
        assert "/b  " not in done.stdout


@pytest.mark.parametrize("other", [("shop", "b"), ("tone", "a"), ("Shop", "a"), ("shop", "A")])
def test_two_files_of_one_suite_run_each_are_not_paired_across_names(
    evald: Any, tmp_path: Path, other: tuple[str, str]
) -> None:
    base = _results(tmp_path / "base.json", (*other, GOOD))
    new = _results(tmp_path / "new.json", ("shop", "a", GOOD))
    gate = tmp_path / "gate.yaml"
    gate.write_text("gates: [{suite: shop, max_drop: 1}]")
    for more in ((), ("--gate", str(gate))):
        done = evald("compare", base, new, *more)
        assert done.returncode == 3, done.stdout
        said = " ".join(done.stdout.split())
        assert f"base file has no suite run of shop a; it has {' '.join(other)}" in said


def test_a_suite_run_that_is_gone_is_not_a_pass(evald: Any, tmp_path: Path) -> None:
    one = Path(_write(tmp_path / "one.jsonl", "P" * 20, "a")).read_text()
    other = Path(_write(tmp_path / "other.jsonl", "P" * 20, "b")).read_text()
    base, twice, new = (tmp_path / f"{name}.jsonl" for name in ("base", "twice", "new"))
    base.write_text(one + other)
    twice.write_text(one + one)
    new.write_text(one)
    gate = tmp_path / "gate.yaml"
    gate.write_text("gates:\n  - {suite: checkout, max_drop: 0.05}\n")
    for more in ((), ("--gate", str(gate))):
        done = evald("compare", str(base), str(new), *more)
        assert (done.returncode, "checkout/b  ? INCONCLUSIVE" in done.stdout) == (3, True), done.stdout
    done = evald("compare", str(twice), str(new))
    assert (done.returncode, "the base file has two suite runs of checkout a" in done.stderr) == (2, True)


def test_line_separators_in_texts_end_no_line(evald: Any, tmp_path: Path) -> None:
    file = tmp_path / "new.jsonl"
    file.write_text(Path(_write(file, "P" * 20)).read_text().replace("turn P", "turn \u2028\x85 P"))
    done = evald("compare", str(file), str(file))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda text: text.splitlines()[0], "without a suite run after them", id="cut off"),
        pytest.param(lambda text: "", "got no suite run", id="empty"),
        pytest.param(
            lambda text: text.partition("\n")[2], "19 cases, but the suite run counts 20", id="a case lost"
        ),
        pytest.param(lambda text: text.replace("case-01", "case-00"), "duplicate case 'case-00'", id="twice"),
        pytest.param(
            lambda text: text.replace('"caseId"', '"caseId": 3, "x"', 1), "new.jsonl:1: wanted a", id="type"
        ),
        pytest.param(lambda text: "{", "not valid JSON", id="no JSON"),
        pytest.param(
            lambda text: text.replace("VERDICT_PASSED", "VERDICT_FAILED", 1), "cases are PASSED", id="edited"
        ),
    ],
)
def test_results_that_are_not_whole_are_refused(
    evald: Any, files: Pair, change: Callable[[str], str], message: str
) -> None:
    base, new = files("P" * 20, "P" * 20, ".jsonl")
    Path(new).write_text(change(Path(new).read_text()))
    done = evald("compare", base, new)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("base.json", "latest", "--suite", "a"), "wanted two files"),
        (
            ("base.json", "new.xml"),
            "got one file (base.json), wanted two files that end with .json or .jsonl",
        ),
        ((), "`latest` and `previous` need a suite"),
        (("a.json", "b.json", "--output", "x.pdf"), "wanted a file name that ends with"),
        (("nowhere.json", "b.json"), "nowhere.json"),
        (("--gate", "g.yaml", "--max-drop", "0.1"), "--max-drop and --gate cannot be used together"),
    ],
)
def test_wrong_usage_is_refused(evald: Any, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = evald("compare", *arguments, "--data-dir", str(tmp_path))
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.fixture
async def stored(tmp_path: Path) -> Callable[..., Any]:
    """Runs suites on a server that stores them in a directory; returns the ids. interrupted: before the last case."""

    async def store(
        *runs: str, name: str = "checkout", target: str = "staging", interrupted: bool = False
    ) -> list[str]:
        arguments = argparse.Namespace(
            server=None, plugins=None, code_allow=None, config=None, data_dir=str(tmp_path / "data")
        )
        ids = []
        async with serving(arguments) as (address, _), grpc.aio.insecure_channel(address) as channel:
            stub = suite_service_pb2_grpc.SuiteServiceStub(channel)
            for letters in runs:
                cases = [
                    recorded(f"case-{number:02}", "hello" if letter == "P" else "goodbye")
                    for number, letter in enumerate(letters)
                ]
                ids.append(str(uuid4()))
                first = opened(suite=name, target=target, suite_run_id=ids[-1])
                if interrupted:
                    first.case_count = len(cases) + 1
                with pytest.raises(grpc.aio.AioRpcError) if interrupted else nullcontext():
                    await play(stub, first, cases)
        return ids

    return store


async def test_stored_suite_runs_are_compared_by_id_and_by_age(
    evald: Any, tmp_path: Path, stored: Any
) -> None:
    first, second, third = await stored("P" * 20, "P" * 12 + "F" * 8, "P" * 20)
    await stored("P" * 6, name="tone")
    data = ("--data-dir", str(tmp_path / "data"))
    by_id = evald("compare", first, second, *data)
    assert by_id.returncode == 1, by_id.stderr
    assert "checkout/staging  ✗ BLOCK" in by_id.stdout
    by_age = json.loads(evald("compare", "--suite", "checkout", *data, "--json").stdout)["comparisons"][0]
    assert (by_age["base"]["id"], by_age["new"]["id"]) == (second, third)
    since = json.loads(evald("compare", second, "--suite", "checkout", *data, "--json").stdout)[
        "comparisons"
    ][0]
    assert (since["base"]["id"], since["new"]["id"]) == (second, third)
    alone = evald("compare", "--suite", "tone", *data)
    assert (alone.returncode, "no completed suite run to compare with" in alone.stdout) == (3, True)
    gate = tmp_path / "gate.yaml"
    gate.write_text("gates:\n  - {suite: checkout, max_drop: 0.05}\n  - {suite: tone, threshold: 0.9}\n")
    gated = evald("compare", "--gate", str(gate), *data)
    assert (gated.returncode, gated.stdout.splitlines()[-1]) == (0, "GO"), gated.stdout
    gate.write_text("gates:\n  - {suite: checkout, max_drop: 0.05}\n  - {suite: nowhere, threshold: 0.9}\n")
    gated = evald("compare", "--gate", str(gate), *data)
    assert (gated.returncode, gated.stdout.splitlines()[-1]) == (3, "INCONCLUSIVE"), gated.stdout
    missing = evald("compare", "--suite", "nowhere", *data)
    assert (missing.returncode, 'no suite run of "nowhere"' in missing.stderr) == (2, True)
    (half,) = await stored("P" * 19, interrupted=True)
    for words in ((third, half), ("--suite", "checkout")):
        done = evald("compare", *words, *data, "--json")
        (found,) = json.loads(done.stdout)["comparisons"]
        assert (done.returncode, found["new"]["id"]) == (3, half)
        assert found["reason"] == "The new run did not complete"
    gate.write_text("gates:\n  - {suite: checkout, threshold: 0.5}\n")
    gated = evald("compare", "--gate", str(gate), *data)
    assert (gated.returncode, gated.stdout.splitlines()[-1]) == (3, "INCONCLUSIVE"), gated.stdout
    assert evald("compare", half, third, *data).returncode == 3


async def test_a_gate_is_about_every_target_of_a_stored_suite(
    evald: Any, tmp_path: Path, stored: Any
) -> None:
    await stored("P" * 12 + "F" * 8, target="one")
    await stored("P" * 20, target="other")
    gate, data = tmp_path / "gate.yaml", ("--data-dir", str(tmp_path / "data"))
    gate.write_text("gates:\n  - {suite: checkout, threshold: 0.9}\n")
    for more in ((), ("--suite", "checkout")):
        done = evald("compare", "--gate", str(gate), *more, *data)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "NO-GO"), done.stdout
    assert (
        evald("compare", "--gate", str(gate), "--target", "other", "--suite", "checkout", *data).returncode
        == 0
    )
