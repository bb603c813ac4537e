"""The options of the commands test, compare, history and convert. Imports nothing slow."""

from collections.abc import Callable
from typing import Any, Final

from .options import add_inside_options, add_option, number_between, whole_number

_TEST: Final = """\
Runs suites of cases against agents or recorded answers, and reports whether
they passed. SUITE is a YAML, JSON or JSON Lines file. All results are stored: in
--data-dir by the command's own server, or by the server of --server.
"""

_TEST_EXAMPLES: Final = """\
examples:
  evald test checkout.yaml
  evald test checkout.yaml --target staging --trials 4 --min-passed 3
  evald test checkout.yaml --target baseline --target new     compares the two
  evald test checkout.yaml --transcripts answers.jsonl --output report.xml
  evald test checkout.yaml --tag smoke --exclude-tag slow
  evald test checkout.yaml --resume                           continues an interrupted run
  evald test --schema > suite.schema.json

exit codes; of several suites or targets the worst one:
  0 passed   1 failed   2 wrong usage   3 inconclusive   4 server unreachable
"""

_HISTORY: Final = """\
Shows the results of suites over time: pass rate and mean score of every stored suite
run, oldest first; with --case, the results of one case.
"""

_HISTORY_EXAMPLES: Final = """\
examples:
  evald history
  evald history checkout --target staging --limit 50
  evald history checkout --case refund
"""

_COMPARE: Final = """\
Checks whether a suite run is worse than another, case by case: PASS, WARN, BLOCK
or INCONCLUSIVE. BASE and NEW are ids of stored suite runs, `latest` or
`previous` of --suite, or .json or .jsonl files that evald test --output
has written. With --gate the rules of a file decide: GO, NO-GO or INCONCLUSIVE.
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
Converts a suite of AgentV or promptfoo, or an OpenAI grader with its items, to a
suite file of evald. `evald test` also reads these files directly. A key without a
counterpart in evald is refused, with its line and the reason.
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
        command("compare", "check whether a suite run is worse than another", _COMPARE, _COMPARE_EXAMPLES)
    )
    history = command("history", "show the results of suites over time", _HISTORY, _HISTORY_EXAMPLES)
    add_option(
        history, "SUITE", "only runs of this suite; default: all suites", dest="suite", nargs="?", default=""
    )
    add_option(history, "--target NAME", "only runs against this target", default="")
    add_option(history, "--case ID", "show the results of this case", default="")
    add_option(history, "--limit N", "show the latest N suite runs [20]", type=whole_number(1000), default=20)
    add_option(history, "--html FILE", "write an HTML page with plots as well")
    add_option(history, "--json", "as JSON Lines")
    _stored_options(history)

    converting = command(
        "convert", "convert suites of other tools to evald's format", _CONVERT, _CONVERT_EXAMPLES
    )
    add_option(converting, "FILE", "YAML, JSON or JSON Lines", dest="file")
    add_option(converting, "-o --output FILE", "file to write; default: standard output")


def _test_options(parser: Any) -> None:
    add_option(parser, "SUITE", "YAML, JSON or JSON Lines", dest="files", nargs="*")
    targets = parser.add_argument_group("what is tested")
    add_option(
        targets,
        "--target NAME",
        "name of a connector: stored, in the suite, or in --connector; repeatable",
        repeated="targets",
    )
    add_option(
        targets,
        "--connector FILE",
        "file of connectors that are not stored; repeatable",
        repeated="connectors",
    )
    add_option(
        targets,
        "--transcripts FILE",
        "recorded answers: JSON Lines or CSV; repeatable",
        repeated="transcripts",
    )
    how = parser.add_argument_group("options of the run; they take precedence over the suites'")
    add_option(how, "--trials N", "number of times each case is run", type=whole_number(100))
    add_option(how, "--min-passed N", "trials that must pass [all]", type=whole_number(100))
    add_option(
        how,
        "--threshold SHARE",
        "minimum share of cases that must pass [1]",
        type=number_between(0, 1, above=True),
    )
    add_option(how, "--concurrency N", "maximum concurrent calls of agents [8]", type=whole_number(256))
    filters = parser.add_argument_group("filters")
    add_option(
        filters, "--tag TAG", "only cases with this tag, or one of several; repeatable", repeated="tags"
    )
    add_option(
        filters, "--exclude-tag TAG", "leave out cases with this tag; repeatable", repeated="exclude_tags"
    )
    add_option(filters, "--case ID", "only this case; repeatable", repeated="ids")
    add_option(
        parser,
        "--resume ID",
        "resume an interrupted suite run: the latest of the suite, or the one with this id",
        nargs="?",
        const="latest",
    )
    add_option(parser, "--list", "list the cases without running them")
    add_option(parser, "--schema", "print the JSON Schema of suite files and exit")
    reports = parser.add_argument_group("reports")
    add_option(
        reports,
        "--output FILE",
        "write .json, .jsonl, .xml (JUnit), .md or .html; repeatable",
        repeated="outputs",
    )
    add_option(reports, "--github", "print annotations for GitHub Actions")
    add_option(reports, "-v --verbose", "show every case, also the answers of those that passed")
    add_option(reports, "--json", "JSON Lines: an object per case, then the suite run")
    _stored_options(parser)


def _compare_options(parser: Any) -> None:
    add_option(
        parser, "BASE", "suite run to compare with [previous]", dest="base", nargs="?", default="previous"
    )
    add_option(parser, "NEW", "suite run to check [latest]", dest="new", nargs="?", default="latest")
    add_option(
        parser,
        "--suite NAME",
        "suite of `latest` and `previous`, or of the files; repeatable",
        repeated="suites",
    )
    add_option(
        parser, "--target NAME", "only runs against this target; default: that of the latest run", default=""
    )
    add_option(parser, "--max-drop SHARE", "maximum drop of the pass rate [0.05]", type=number_between(0, 1))
    add_option(parser, "--gate FILE", "file of rules that decide, YAML or JSON")
    add_option(parser, "--json", "as JSON")
    add_option(parser, "--output FILE", "write .md or .json as well; repeatable", repeated="outputs")
    _stored_options(parser)


def _stored_options(parser: Any) -> None:
    add_option(
        parser,
        "--data-dir DIR",
        "directory in which the command's own server stores results [EVALD_DATA_DIR, .evald]",
    )
    add_inside_options(parser)
