"""The pytest plugin: the fixtures `evald`, from an embedded or a running server, and `evald_case`, from suites.

pytest loads this module wherever evald is installed, so heavy imports wait until a test needs them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from evald import Client, Evaluation
    from evald.spec import OptionsLike, SpecLike
    from evald.turn import TurnLike
    from evald.v1 import message_pb2, suite_service_pb2

    from .testing import LocalServer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command line options and the ini options."""
    group = parser.getgroup("evald", "evaluation of agents")
    group.addoption(
        "--evald-server",
        metavar="HOST:PORT",
        help="server for the fixture `evald`; default: a server in the test process",
    )
    group.addoption(
        "--evald-plugin",
        metavar="PATH|PACKAGE",
        action="append",
        default=[],
        help="Python file or package with evaluators for the server in the test process; repeatable",
    )
    parser.addini("evald_server", "same as --evald-server", default="")
    parser.addini("evald_plugins", "same as --evald-plugin, one per line", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker `evald_suite`."""
    config.addinivalue_line(
        "markers", "evald_suite(*files, tags=(), ids=()): run the test once for each case, as `evald_case`"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that requests `evald_case` with the cases of the suites in its marker."""
    if "evald_case" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("evald_suite")
    if marker is None or not marker.args:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid} requests evald_case but names no suite; "
            'mark it with @pytest.mark.evald_suite("suite.yaml")'
        )
    from .suites.documents import InvalidDocument
    from .suites.suite_file import load_suites

    folder = metafunc.definition.path.parent
    try:
        # A target, because the test itself gets the answers from the agent.
        suites = load_suites([folder / name for name in marker.args], **marker.kwargs, targets=["the test"])
    except InvalidDocument as problems:
        raise pytest.UsageError(str(problems)) from None
    for warning in (one for suite in suites for one in suite.warnings):
        metafunc.definition.warn(pytest.PytestWarning(warning))
    cases = [CaseUnderTest(suite.open, case) for suite in suites for case in suite.cases]
    skipped = [
        pytest.param(None, id=case_id, marks=pytest.mark.skip(reason=why))
        for suite in suites
        for case_id, why in suite.skipped
    ]
    metafunc.parametrize("evald_case", [*(pytest.param(case, id=case.id) for case in cases), *skipped])


class CaseUnderTest:
    """A case of a suite. id, tags and metadata are as in the file."""

    def __init__(self, suite: "suite_service_pb2.SuiteOpen", case: "suite_service_pb2.SuiteCase") -> None:
        from evald.structs import struct_to_dict

        self.id: str = case.case_id
        self.tags: Sequence[str] = tuple(case.tags)
        self.metadata: Mapping[str, Any] = struct_to_dict(case.metadata)
        self._suite = suite
        self._case = case

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages before the agent's first answer, in OpenAI's format."""
        return [*_openai(self._case.messages), *self.inputs[0]]

    @property
    def inputs(self) -> list[list[dict[str, Any]]]:
        """The user's messages of each turn, in OpenAI's format."""
        return [_openai(turn.input) for turn in self._case.turns]

    def evaluate(self, client: "Client", answers: "Sequence[Any]") -> "Iterator[Evaluation]":
        """Evaluate the turns that have evaluators, as `evald test` does with recorded answers.

        answers: the agent's, one per turn, like `output` in a suite.
        """
        from evald import Turn
        from evald.convert.spec import read_options, read_spec
        from evald.v1 import context_pb2

        from .suites.case_messages import invocation

        turns = self._case.turns
        if len(answers) != len(turns):
            raise ValueError(
                f"case {self.id}: got {len(answers)} answers, wanted {len(turns)}, one for each turn"
            )
        options = read_options(self._case.options if self._case.HasField("options") else self._suite.options)
        messages = list(self._case.messages)
        latencies: list[int] = []  # nanoseconds of the answers whose latency is known
        for number, (turn, answer) in enumerate(zip(turns, answers, strict=True), 1):
            is_final = number == len(turns)
            last = invocation(answer, f"answers[{number - 1}]")
            messages += [*turn.input, *last.messages]
            pb = context_pb2.EvaluatorContext(
                turn=number, is_final=is_final, attempt=1, messages=messages, last_invocation=last
            )
            if turn.HasField("expected"):
                pb.expected.CopyFrom(turn.expected)
            if self._case.HasField("metadata"):
                pb.metadata.CopyFrom(self._case.metadata)
            if last.HasField("latency"):
                latencies.append(last.latency.ToNanoseconds())
            if len(latencies) == number:
                pb.run_duration.FromNanoseconds(sum(latencies))
            specs = turn.evaluators or (is_final and (self._case.evaluators or self._suite.evaluators))
            if specs:
                yield client.evaluate(Turn.from_proto(pb), map(read_spec, specs), options=options)


def _openai(messages: "Iterable[message_pb2.ChatMessage]") -> list[dict[str, Any]]:
    from evald.convert.json_shapes import message_to_openai

    return [message_to_openai(message) for message in messages]


class TurnChecker:
    """Evaluates turns in tests. client: for all other calls of the server."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    def evaluate(
        self, turn: "TurnLike", evaluators: "Iterable[SpecLike]", *, options: "OptionsLike | None" = None
    ) -> "Evaluation":
        """Evaluate a turn, as `evald.Client.evaluate` does."""
        return self.client.evaluate(turn, evaluators, options=options)

    def assert_passes(
        self, turn: "TurnLike", evaluators: "Iterable[SpecLike]", *, options: "OptionsLike | None" = None
    ) -> "Evaluation":
        """Evaluate a turn and return the evaluation if its verdict is PASSED.

        Raises AssertionError, which lists every result that did not pass with its reason.
        """
        __tracebackhide__ = True
        evaluation = self.evaluate(turn, evaluators, options=options)
        if not evaluation.passed:
            raise AssertionError(describe(evaluation))
        return evaluation

    def assert_case(self, case: CaseUnderTest, *answers: Any) -> "list[Evaluation]":
        """Evaluate the agent's answers to a case of a suite and return the evaluations if the case PASSED.

        It passes as in `evald test`: a turn passed, and no turn failed or is in error; skipped ones do not count.
        answers: one per turn: a text, messages, or any other form of `output` in a suite file.
        Raises AssertionError as `assert_passes` does, and ValueError for invalid answers.
        """
        __tracebackhide__ = True
        from evald import Verdict

        from .suites.verdicts import trial_verdict

        evaluations = list(case.evaluate(self.client, answers))
        if Verdict(trial_verdict(evaluation.verdict for evaluation in evaluations)) is not Verdict.PASSED:
            unpassed = [evaluation for evaluation in evaluations if not evaluation.passed]
            raise AssertionError("\n".join(map(describe, unpassed)) or "ERROR: no turn was evaluated")
        return evaluations


def describe(evaluation: "Evaluation") -> str:
    """Return the verdict and a line for every result that failed, has an error or was skipped."""
    from .pages.formats import score

    inconclusive = " (inconclusive: an evaluator ended in error, so there is no verdict on the agent)"
    head = f"{evaluation.verdict.name}{inconclusive if evaluation.verdict.name == 'ERROR' else ''}"
    lines = [f"{head}: {evaluation.reason}"]
    for result in evaluation.results:
        if result.passed:
            continue
        shown = "" if result.score is None else f", score {score(result.score)}"
        error = f" [{result.error.code}]" if result.error else ""
        shadow = ", shadow" if result.shadow else ""
        lines.append(f"  {result.verdict.name} {result.name}{error}{shown}{shadow}: {result.reason}")
        lines += [f"    not met: {check.text}" for check in result.checks if not check.met]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def evald_server(pytestconfig: pytest.Config) -> "Iterator[LocalServer]":
    """Run a server with the built-in evaluators and those of --evald-plugin, shared by all tests."""
    try:
        from .testing import server
    except ModuleNotFoundError as missing:
        raise pytest.UsageError(
            f"a server in the test process needs pip install 'evald[server]' ({missing.name} is missing); "
            "or use a running server with --evald-server HOST:PORT"
        ) from None
    plugins = pytestconfig.getoption("--evald-plugin") or pytestconfig.getini("evald_plugins")
    with server(plugins=list(plugins)) as running:
        yield running


@pytest.fixture(scope="session")
def evald_client(request: pytest.FixtureRequest) -> "Iterator[Client]":
    """Connect a client to --evald-server, else to `evald_server`."""
    from evald import Client

    config = request.config
    address = config.getoption("--evald-server") or config.getini("evald_server")
    if not address:
        address = request.getfixturevalue("evald_server").address
    elif config.getoption("--evald-plugin"):
        raise pytest.UsageError(
            f"--evald-plugin configures the server in the test process, so it cannot be used with --evald-server {address}; "
            "load the plugin in that server: evald serve --plugin ..."
        )
    with Client(address) as client:
        yield client


@pytest.fixture(scope="session")
def evald(evald_client: "Client") -> TurnChecker:
    """Evaluate turns: `evald.assert_passes(turn, ["is-json"])`."""
    return TurnChecker(evald_client)
