"""The options of the commands test, compare, history and convert. Imports nothing slow."""

from collections.abc import Callable
from typing import Any, Final

from .options import add_inside_options, add_repeatable, number_between, whole_number

_TEST: Final = """\
Runs suites of cases against agents or against recorded answers, and says whether
they passed. SUITE is a YAML, JSON or JSON Lines file. All results are stored: in
--data-dir by the server inside the command, or by --server.
"""

_TEST_EXAMPLES: Final = """\
examples:
  evald test checkout.yaml
  evald test checkout.yaml --target staging --trials 4 --min-passed 3
  evald test checkout.yaml --target baseline --target new     compares the two
  evald test checkout.yaml --transcripts answers.jsonl --output report.xml
  evald test checkout.yaml --tag smoke --exclude-tag slow
  evald test checkout.yaml --resume                           goes on where it stopped
  evald test --schema > suite.schema.json

exit codes; of several suites or targets the worst one:
  0 passed   1 failed   2 wrong usage   3 inconclusive   4 server unreachable
"""

_HISTORY: Final = """\
Shows how suites did over time: pass rate and mean score of every stored suite
run, oldest first; with --case of one case.
"""

_HISTORY_EXAMPLES: Final = """\
examples:
  evald history
  evald history checkout --target staging --limit 50
  evald history checkout --case refund
"""

_COMPARE: Final = """\
Says whether a suite run is worse than another, paired by case: PASS, WARN, BLOCK
or INCONCLUSIVE. BASE and NEW are ids of stored suite runs, `latest` and
`previous` of --suite, or files that evald test --output has written as .json or
.jsonl. With --gate the rules of a file decide: GO, NO-GO or INCONCLUSIVE.
"""

_COMPARE_EXAMPLES: Final = """\
examples:
  evald compare --suite checkout                    the latest run with the one before
  evald compare --suite checkout --target staging --max-drop 0.02
  evald compare main.json branch.json --output comparison.md
  evald compare main.json branch.json --gate gate.yaml
  evald compare --gate gate.yaml                    every suite that the gate names

exit codes; of several suites the worst one:
  0 PASS, WARN, GO   1 BLOCK, NO-GO   2 wrong usage   3 INCONCLUSIVE   4 server unreachable
"""

_CONVERT: Final = """\
Writes a suite of AgentV or promptfoo, or a grader of OpenAI's with its items, as a
suite file of evald. `evald test` reads them as they are, too. What has no
counterpart is refused with its line and the reason.
"""

_CONVERT_EXAMPLES: Final = """\
examples:
  evald convert promptfooconfig.yaml > checkout.yaml
  evald convert grader.json --output checkout.yaml        with the items of grader.jsonl
"""


def add_suite_commands(command: Callable[..., Any]) -> None:
    """Add the commands. command: (name, summary, text, examples) -> parser of the command."""
    _test_options(command("test", "run suites of cases", _TEST, _TEST_EXAMPLES))
    _compare_options(
        command("compare", "say whether a suite run is worse than another", _COMPARE, _COMPARE_EXAMPLES)
    )
    history = command("history", "show how suites did over time", _HISTORY, _HISTORY_EXAMPLES)
    history.add_argument(
        "suite", metavar="SUITE", nargs="?", default="", help="of this suite; all by default"
    )
    history.add_argument("--target", metavar="NAME", default="", help="against this target")
    history.add_argument("--case", metavar="ID", default="", help="of this case alone")
    history.add_argument(
        "--limit",
        metavar="N",
        type=whole_number(1000),
        default=20,
        help="maximum number of suite runs, the latest ones [20]",
    )
    history.add_argument("--html", metavar="FILE", help="write a page with plots as well")
    history.add_argument("--json", action="store_true", help="as JSON Lines")
    _stored_options(history)

    converting = command("convert", "write suites of other tools as ours", _CONVERT, _CONVERT_EXAMPLES)
    converting.add_argument("file", metavar="FILE", help="YAML, JSON or JSON Lines")
    converting.add_argument("-o", "--output", metavar="FILE", help="write here; standard output by default")


def _test_options(parser: Any) -> None:
    parser.add_argument("files", metavar="SUITE", nargs="*", help="YAML, JSON or JSON Lines")
    targets = parser.add_argument_group("what is tested")
    add_repeatable(
        targets.add_argument,
        "--target",
        "NAME",
        "targets",
        "connector: stored, of the suite, or of --connector; repeatable",
    )
    add_repeatable(
        targets.add_argument,
        "--connector",
        "FILE",
        "connectors",
        "connectors that are not stored; repeatable",
    )
    add_repeatable(
        targets.add_argument,
        "--transcripts",
        "FILE",
        "transcripts",
        "recorded answers: JSON Lines or CSV; repeatable",
    )
    how = parser.add_argument_group("options of the run; they take precedence over the suites'")
    how.add_argument("--trials", metavar="N", type=whole_number(100), help="number of times each case is run")
    how.add_argument("--min-passed", metavar="N", type=whole_number(100), help="trials that must pass [all]")
    how.add_argument(
        "--threshold",
        metavar="SHARE",
        type=number_between(0, 1),
        help="minimum share of cases that must pass [1]",
    )
    how.add_argument(
        "--concurrency", metavar="N", type=whole_number(256), help="maximum concurrent calls of agents [8]"
    )
    filters = parser.add_argument_group("filters")
    add_repeatable(
        filters.add_argument, "--tag", "TAG", "tags", "cases with this tag; repeatable, any of them"
    )
    add_repeatable(
        filters.add_argument, "--exclude-tag", "TAG", "exclude_tags", "no cases with this tag; repeatable"
    )
    add_repeatable(filters.add_argument, "--case", "ID", "ids", "this case; repeatable")
    parser.add_argument(
        "--resume",
        metavar="ID",
        nargs="?",
        const="latest",
        help="resume an interrupted suite run: the latest of the suite, or the one with this id",
    )
    parser.add_argument("--list", action="store_true", help="list the cases and run nothing")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of suite files and exit")
    reports = parser.add_argument_group("reports")
    add_repeatable(
        reports.add_argument,
        "--output",
        "FILE",
        "outputs",
        "write .json, .jsonl, .xml (JUnit), .md or .html; repeatable",
    )
    reports.add_argument("--github", action="store_true", help="print annotations for GitHub Actions")
    reports.add_argument(
        "--json", action="store_true", help="JSON Lines: an object per case, then the suite run"
    )
    _stored_options(parser)


def _compare_options(parser: Any) -> None:
    parser.add_argument(
        "base", metavar="BASE", nargs="?", default="previous", help="suite run to compare with [previous]"
    )
    parser.add_argument("new", metavar="NEW", nargs="?", default="latest", help="suite run to check [latest]")
    add_repeatable(
        parser.add_argument,
        "--suite",
        "NAME",
        "suites",
        "of which suite `latest` and `previous` are; repeatable",
    )
    parser.add_argument(
        "--target", metavar="NAME", default="", help="against this target; that of the latest by default"
    )
    parser.add_argument(
        "--max-drop",
        metavar="SHARE",
        type=number_between(0, 1),
        help="maximum drop of the pass rate [0.05]",
    )
    parser.add_argument("--gate", metavar="FILE", help="rules that decide, in YAML or JSON")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_repeatable(
        parser.add_argument, "--output", "FILE", "outputs", "write .md or .json as well; repeatable"
    )
    _stored_options(parser)


def _stored_options(parser: Any) -> None:
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where the server inside the command stores results [EVALD_DATA_DIR, .evald]",
    )
    add_inside_options(parser)
