"""The figures of the overview, from the counts of hours and days."""

from evald.catalog import EvaluatorType
from evald.v1 import evaluator_pb2, run_service_pb2
from evald_server.http.console.figures import Period, Spread, figures, problems, spreads
from evald_server.pages.plots import spark
from evald_server.store.rollups import ASSERTION, HOUR, METRIC, RUN, Rollup

PERIOD = Period(since=100 * HOUR, width=HOUR, size=3)


def a_count(hour: int, scope: str, key: str, *counts: float) -> Rollup:
    return Rollup(PERIOD.since + hour * HOUR, scope, key, *counts)  # type: ignore[arg-type]


def a_type(name: str, label: str = "", unit: str = "", schema: str = "") -> EvaluatorType:
    pb = evaluator_pb2.EvaluatorType(type=name, label=label, config_schema_json=schema)
    if unit:
        pb.metric.unit = unit
    return EvaluatorType.from_pb(pb)


def test_pieces_add_up_and_the_worst_assertions_come_first() -> None:
    found = figures(
        [
            a_count(0, RUN, "", 3, 1, 0, 0, 0, 0.0),
            a_count(2, RUN, "", 1, 0, 2, 1, 0, 0.0),
            a_count(0, ASSERTION, "calm", 4, 0, 0, 0, 0, 0.0),
            a_count(0, ASSERTION, "regex#2", 1, 3, 0, 0, 0, 0.0),
            a_count(2, ASSERTION, "regex#2", 2, 0, 1, 0, 0, 0.0),
            a_count(1, ASSERTION, "broken", 0, 0, 9, 0, 0, 0.0),
            a_count(0, METRIC, "cost", 2, 0, 0, 0, 2, 3.0),
            a_count(2, METRIC, "cost", 3, 0, 1, 0, 3, 9.0),
            a_count(2, METRIC, "blank", 1, 0, 0, 0, 0, 0.0),
        ],
        PERIOD,
        {
            "regex": a_type("regex", "Regex"),
            "cost": a_type("cost", unit="usd", schema='{"properties": {"scope": {}}}'),
            "blank": a_type("blank", unit="words", schema='{"properties": {"unit": {}}}'),
        },
    )
    runs = found.runs
    assert (runs.total, runs.error_count, runs.error_share) == (8, 2, 0.25)
    assert runs.rate is not None
    assert runs.rate.estimate.value == 0.8
    assert runs.counts == spark([4, None, 4])
    assert [(row.name, row.title, row.passed, row.failed, row.error) for row in found.assertions] == [
        ("broken", "broken", 0, 0, 9),
        ("regex#2", "Regex #2", 3, 3, 1),
        ("calm", "calm", 4, 0, 0),
    ]
    assert found.assertions[0].rate is None
    assert found.assertions[1].spark == spark([0.25, None, 1.0], 1.0)
    # A unit that a config chooses is not said: results of both may be there.
    assert [(row.title, row.measured, row.error, row.mean, row.unit) for row in found.metrics] == [
        ("blank", 0, 0, None, ""),
        ("cost", 5, 1, 2.4, "usd"),
    ]
    assert found.metrics[1].spark == spark([1.5, None, 3.0])
    assert found.rows_left_out == 0


def test_p95_is_the_value_that_19_of_20_do_not_exceed() -> None:
    values = [("all", float(value), 1) for value in range(1, 101)]
    few = [("few", -2.0, 18), ("few", 0.5, 1), ("few", 7.0, 1)]
    assert spreads([*values, *few, ("one", 0.0, 3)]) == {
        "all": Spread(100, 95.0),
        "few": Spread(20, 0.5),
        "one": Spread(3, 0.0),
    }
    assert spreads([("tail", 1.0, 18), ("tail", 2.0, 2)]) == {"tail": Spread(20, 2.0)}
    assert spreads([]) == {}


def test_runs_that_were_counted_by_scenario_are_added() -> None:
    found = figures([a_count(1, RUN, key, 1, 1, 0, 0, 0, 0.0) for key in ("a", "b", "")], PERIOD, {})
    assert (found.runs.total, found.runs.counts) == (6, spark([None, 6, None]))
    assert found.runs.rate is not None
    assert found.runs.rate.estimate.value == 0.5


def test_hours_in_which_all_failed_are_drawn() -> None:
    found = figures([a_count(1, ASSERTION, "tone", 0, 2, 0, 0, 0, 0.0)], PERIOD, {})
    assert found.assertions[0].spark == spark([None, 0.0, None], 1.0)


def test_an_evaluator_with_thousands_of_names_leaves_a_page_of_fifty() -> None:
    counts = [a_count(0, ASSERTION, f"name {n:04}", 1, n, 0, 0, 0, 0.0) for n in range(2000)]
    counts += [a_count(0, METRIC, f"name {n:02}", 1, 0, 0, 0, 1, 1.0) for n in range(60)]
    found = figures(counts, PERIOD, {})
    assert [row.failed for row in found.assertions] == list(range(1999, 1949, -1))
    assert [row.name for row in found.metrics] == [f"name {n:02}" for n in range(50)]
    assert found.rows_left_out == 1960


def test_a_period_without_counts_is_empty() -> None:
    found = figures([], PERIOD, {})
    assert (found.runs.total, found.runs.rate, found.runs.error_share) == (0, None, 0.0)
    assert (found.assertions, found.metrics, found.rows_left_out) == ([], [], 0)


def test_runs_are_grouped_by_the_result_that_decided_and_the_most_frequent_come_first() -> None:
    def a_run(name: str, broke: bool, *results: tuple[str, int, int, int]) -> run_service_pb2.Run:
        """results: name, kind, verdict and enforcement of each."""
        run = run_service_pb2.Run(id=name, scenario_id=name[0])
        run.status = run_service_pb2.RUN_STATUS_ERROR if broke else run_service_pb2.RUN_STATUS_COMPLETED
        run.scenario.name = name[0].upper()
        run.error.code = "CONNECTOR_TIMEOUT" if broke else ""
        for evaluator, kind, verdict, enforcement in results:
            found = run.output.evaluator_results.add(name=evaluator)
            found.kind, found.verdict, found.enforcement = kind, verdict, enforcement  # type: ignore[assignment]
            if verdict == 3:
                found.error.code = "TIMEOUT"
        return run

    decoys = (
        ("shadow", 1, 2, 2),
        ("shadow", 1, 3, 2),
        ("metric", 2, 2, 1),
        ("metric", 2, 3, 1),
        ("ok", 1, 1, 1),
    )
    found = problems(
        [
            a_run("a1", False, *decoys, ("judge", 1, 3, 1), ("tone", 1, 2, 1), ("more", 1, 2, 1)),
            a_run("b1", True, *decoys, ("tone", 1, 2, 1), ("judge", 1, 3, 1)),
            a_run("c1", True, *decoys),
            a_run("d1", False, *decoys),
            a_run("b2", True, ("judge", 1, 3, 1)),
            a_run("b3", True, ("judge", 1, 3, 1)),
        ]
    )
    assert [
        (one.mark.word, one.scenario, one.what, one.evaluator, one.runs, one.last_id) for one in found
    ] == [
        ("Inconclusive", "B", "judge: TIMEOUT", "judge", 3, "b1"),
        ("Failed", "A", "tone", "tone", 1, "a1"),
        ("Inconclusive", "C", "CONNECTOR_TIMEOUT", "", 1, "c1"),
        ("Failed", "D", "the run as a whole", "", 1, "d1"),
    ]
