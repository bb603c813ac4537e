"""The pytest plugin: the fixture `evald`, from an embedded or a running server.

Loaded by pytest itself where evald is installed; imports what is heavy only when a test asks for it.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from evald import Client, Evaluation
    from evald.spec import OptionsLike, SpecLike
    from evald.turn import TurnLike

    from .testing import LocalServer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and their ini twins."""
    group = parser.getgroup("evald", "evaluation of agents")
    group.addoption(
        "--evald-server",
        metavar="HOST:PORT",
        help="server of the fixture `evald`; default: one inside this process",
    )
    group.addoption(
        "--evald-plugin",
        metavar="PATH|PACKAGE",
        action="append",
        default=[],
        help="evaluators of your own for the server inside this process; repeatable",
    )
    parser.addini("evald_server", "as --evald-server")
    parser.addini("evald_plugins", "as --evald-plugin, one a line", type="linelist")


class TurnChecker:
    """Evaluates turns within tests. client: for everything else that a server does."""

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


def describe(evaluation: "Evaluation") -> str:
    """Return the verdict, and a line for every result that failed, broke or was skipped."""
    inconclusive = " (inconclusive: an evaluator broke, which is no verdict on the agent)"
    head = f"{evaluation.verdict.name}{inconclusive if evaluation.verdict.name == 'ERROR' else ''}"
    lines = [f"{head}: {evaluation.reason}"]
    for result in evaluation.results:
        if result.passed:
            continue
        score = "" if result.score is None else f", score {result.score:.2f}"
        error = f" [{result.error.code}]" if result.error else ""
        shadow = ", shadow" if result.shadow else ""
        lines.append(f"  {result.verdict.name} {result.name}{error}{score}{shadow}: {result.reason}")
        lines += [f"    missed: {check.text}" for check in result.checks if not check.met]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def evald_server(pytestconfig: pytest.Config) -> "Iterator[LocalServer]":
    """Run a server with the built-in evaluators and those of --evald-plugin, shared by all tests."""
    try:
        from .testing import server
    except ModuleNotFoundError as missing:
        raise pytest.UsageError(
            f"a server inside the tests needs pip install 'evald[server]' ({missing.name} is missing); "
            "or name a running one: --evald-server HOST:PORT"
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
            f"--evald-plugin is for the server inside the tests, but --evald-server {address} is given as well; "
            "load it there: evald serve --plugin ..."
        )
    with Client(address) as client:
        yield client


@pytest.fixture(scope="session")
def evald(evald_client: "Client") -> TurnChecker:
    """Evaluate turns: `evald.assert_passes(turn, ["is-json"])`."""
    return TurnChecker(evald_client)
