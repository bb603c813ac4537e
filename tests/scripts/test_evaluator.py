"""The evaluator in a real server: what callers and operators see of scripts."""

import asyncio
import logging
import os
import secrets
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.structs import struct_to_dict
from evald.v1 import evaluator_pb2, result_pb2
from evald_server.app import App, StartError
from evald_server.config import Settings, SettingsError, load_settings
from evald_server.scripts import evaluator
from evald_server.scripts.evaluator import stderr_tail

from ..isolation import ISOLATION
from ..loop import expect_thread, run
from ..rpc.live import CONTAINS, EVALUATION, refusal, request, serving, spec
from .programs import PASSES, Folder, living
from .test_process import gone, started

ACTIVE, UNAVAILABLE = evaluator_pb2.EvaluatorType.STATE_ACTIVE, evaluator_pb2.EvaluatorType.STATE_UNAVAILABLE


def evaluate(path: str, config: dict[str, Any] | None = None, **settings: Any) -> result_pb2.EvaluationResult:
    """The result of this script in a server that allows it."""

    async def call() -> result_pb2.EvaluationResult:
        async with serving(code_isolation=ISOLATION, code_allow=[path], **settings) as live:
            answer = await live.unary(request(spec("code", {"command": [path], **(config or {})})))
            return answer.summary.results[0]

    return run(call())


@pytest.mark.parametrize("name", ["code", "script", "code_judge", "code-judge"])
def test_a_script_judges_under_every_name(folder: Folder, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held_up = expect_thread(monkeypatch, evaluator, "read_output")
    path = folder.python(
        """
        turn = json.load(sys.stdin)
        hits = ["says hello"] if "hello" in turn["candidate_answer"] else []
        print(json.dumps({"score": 1.0, "hits": hits, "misses": [], "reasoning": "greets"}))
        """
    )

    async def call() -> Any:
        async with serving(code_isolation=ISOLATION, code_allow=[path]) as live:
            return await live.unary(request(spec(name, {"script": path})))

    evaluation = run(call()).summary
    [result] = evaluation.results
    assert evaluation.verdict == result.verdict == result_pb2.VERDICT_PASSED
    assert (result.type, result.score, result.reason) == ("code", 1.0, "greets")
    assert [(check.text, check.met) for check in result.checks] == [("says hello", True)]
    assert held_up == [False], "a megabyte of empty objects takes half a second"


def test_the_raw_request_tells_what_was_asked_without_its_content(folder: Folder) -> None:
    path = folder.shell(PASSES)
    asked = struct_to_dict(evaluate(path, {"config": {"key": "canary-value"}}).raw_request)
    assert asked["command"] == [path]
    assert asked["isolation"] == ISOLATION
    assert {"answer", "messages", "config", "candidate_answer"} <= set(asked["payload_keys"])
    assert len(asked["payload_sha256"]) == 64
    assert "canary-value" not in str(asked)
    assert "hello" not in str(asked)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("echo bad >&2; exit 3", "SCRIPT_FAILED", "exited with code 3: bad"),
        ("""echo '{"pass": true}'; exit 1""", "SCRIPT_FAILED", "exited with code 1"),
        ("kill -9 $$", "SCRIPT_FAILED", ""),
        ("echo fine", "SCRIPT_OUTPUT_INVALID", "not a valid result: not JSON"),
        ("echo note >&2", "SCRIPT_OUTPUT_INVALID", "it is empty: wanted one JSON object: note"),
        ("""echo '{"score": 2}'""", "SCRIPT_OUTPUT_INVALID", "score: 2 is not between 0 and 1"),
        ("""echo '{"reason": "fine"}'""", "SCRIPT_OUTPUT_INVALID", "no verdict"),
        ("""echo '{"hits": ["a", "b"]}'""", "CONTRACT_VIOLATION", "`hits` without a score"),
        ("sleep 60", "TIMEOUT", "killed after 0.3s"),
        ("exec /nonexistent", "SCRIPT_FAILED", "exited with code 127"),
    ],
)
def test_a_script_s_fault_is_an_error_and_never_a_verdict(
    folder: Folder, text: str, code: str, words: str
) -> None:
    path = folder.shell(text)

    async def call() -> Any:
        async with serving(code_isolation=ISOLATION, code_allow=[path]) as live:
            config = {"command": [path]} | ({"timeoutMs": 300} if text.startswith("sleep") else {})
            return await live.unary(
                request(spec("code", config), CONTAINS, spec("code", config, negate=True))
            )

    evaluation = run(call()).summary
    plain, sibling, negated = evaluation.results
    for result in (plain, negated):
        assert (result.verdict, result.error.code) == (result_pb2.VERDICT_ERROR, code)
        assert words in result.error.message
        assert not result.HasField("score")
    assert sibling.verdict == result_pb2.VERDICT_PASSED
    assert evaluation.verdict == result_pb2.VERDICT_ERROR


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param(
            '{"pass": true, "checks": ['
            + '{"text": "a", "pass": true},' * 1000
            + '{"text": "a", "pass": true}]}',
            "checks: more than 1000 checks",
            id="checks",
        ),
        pytest.param(
            f'{{"pass": true, "metadata": {deep(33)}}}', "metadata: nested deeper than 32 levels", id="depth"
        ),
        pytest.param(
            '{"pass": true, "metadata": {"a": [' + "1," * 10_001 + "1]}}",
            "metadata: more than 10000 items",
            id="items",
        ),
    ],
)
def test_a_result_that_breaks_the_contract_is_named(folder: Folder, said: str, words: str) -> None:
    (folder.path / "said").write_text(said, encoding="utf-8")
    result = evaluate(folder.shell("cat said"), code_directory=folder.path)
    assert result.error.code == "SCRIPT_OUTPUT_INVALID"
    assert words in result.error.message


def test_the_caller_s_deadline_ends_a_script_and_the_summary_still_arrives(folder: Folder) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.shell("echo working >&2; sleep 60")

    async def call() -> Any:
        async with serving(code_isolation=ISOLATION, code_allow=[path]) as live:
            return await live.unary(request(spec("code", {"command": [path, marker]})), timeout=2)

    # Of the call's time a tenth is kept for the answer; three tries, because a machine may stand still for longer.
    for left in (2, 1, 0):
        try:
            [result] = run(call()).summary.results
            break
        except grpc.aio.AioRpcError:
            if not left:
                raise
    assert result.error.code == "TIMEOUT"
    assert result.error.message.endswith(": working")
    gone(marker)


def test_a_caller_that_goes_away_takes_its_script_along(folder: Folder) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.python("os.fork() or os.setsid(); time.sleep(60)")

    async def check() -> None:
        async with serving(code_isolation=ISOLATION, code_allow=[path]) as live:
            call = live.channel.unary_stream(EVALUATION + "Evaluate")(
                request(spec("code", {"command": [path, marker]})).SerializeToString()
            )
            reading = asyncio.create_task(_drain(call))
            await asyncio.to_thread(started, marker, 2)
            call.cancel()
            await reading
            await asyncio.to_thread(gone, marker)

    run(check())


async def _drain(call: Any) -> None:
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        async for _ in call:
            pass


def test_a_server_that_stops_leaves_no_script_behind(folder: Folder) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.python("os.fork() or os.setsid(); time.sleep(60)")

    async def check() -> None:
        async with serving(code_isolation=ISOLATION, code_allow=[path]) as live:
            call = asyncio.create_task(
                refusal(live.unary(request(spec("code", {"command": [path, marker]}))))
            )
            await asyncio.to_thread(started, marker, 2)
            await live.app.stop(0)
            assert living(marker) == []
            await call

    run(check())


@pytest.mark.alone
def test_scripts_that_compute_do_not_hold_up_other_calls(folder: Folder) -> None:
    path = folder.python("while True: pass")
    specs = [spec("code", {"command": [path], "timeoutMs": 1000})]

    async def check() -> list[float]:
        async with serving(code_isolation=ISOLATION, code_allow=[path], code_concurrency=4) as live:
            slow = [asyncio.create_task(live.unary(request(*specs))) for _ in range(8)]
            took = []
            while not all(call.done() for call in slow):
                began = time.monotonic()
                await live.unary(request(CONTAINS))
                took.append(time.monotonic() - began)
                await asyncio.sleep(0.01)
            for call in slow:
                [result] = (await call).summary.results
                assert result.error.code == "TIMEOUT"
            return took

    # The one in the middle: a machine that stands still for a moment delays a few.
    assert statistics.median(run(check())) < 0.1


def test_the_operator_s_values_are_in_no_result_and_no_log(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for text in (
        """echo "{\\"pass\\": true, \\"reason\\": \\"got $TOKEN\\"}" """,
        'echo "got $TOKEN" >&2; exit 1',
        'echo "$TOKEN" >&2; sleep 60',
        'echo "$TOKEN"',
    ):
        path = folder.shell(text)
        config = {"timeoutMs": 500} if "sleep" in text else {}
        result = evaluate(path, config, code_environment=["TOKEN=canary-3f9a"])
        assert "canary-3f9a" not in str(result)
        assert "got [redacted]" in str(result) or "got" not in text
    assert "canary-3f9a" not in caplog.text


def test_standard_error_is_shown_without_what_steers_a_terminal(folder: Folder) -> None:
    path = folder.shell(
        r"printf 'a\033[31mred\033[0m\033]0;title\007\r\n::error::b\000\302\205\342\200\256c\n' >&2; exit 1"
    )
    assert evaluate(path).error.message == "The script exited with code 1: ared\n::error::bc"


def test_the_end_of_standard_error_is_kept() -> None:
    shown = stderr_tail(b"x" * 5000 + "ü".encode() * 1000 + b"end")
    assert len(shown) == 2001
    assert shown.endswith("üend")
    assert stderr_tail("€".encode() * 3000) == "…" + "€" * 2000


def test_scripts_are_off_by_default_and_the_catalogue_says_so() -> None:
    async def check() -> None:
        async with serving() as live:
            [entry] = [entry for entry in (await live.types()).evaluator_types if entry.type == "code"]
            assert entry.state == UNAVAILABLE
            assert "code_allow" in entry.description
            assert list(entry.aliases) == ["code-judge", "script"]
            refused = await refusal(live.unary(request(spec("code", {"command": ["/bin/true"]}))))
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.fields == ["evaluators[0].config"]
            assert "EVALD_CODE_ALLOW" in refused.descriptions[0]

    run(check())


def test_the_catalogue_says_how_scripts_are_isolated(folder: Folder) -> None:
    async def check() -> None:
        async with serving(code_allow=[folder.shell(PASSES)], code_isolation="none") as live:
            [entry] = [entry for entry in (await live.types()).evaluator_types if entry.type == "code"]
            assert entry.state == ACTIVE
            assert "Isolation on this server: none." in entry.description

    run(check())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"code_allow": ["/nonexistent/check"]}, "/nonexistent/check: No such file"),
        ({"code_allow": ["/bin/sh"], "code_directory": "/nonexistent"}, "code_directory: /nonexistent"),
    ],
)
def test_a_server_does_not_start_with_a_policy_that_it_cannot_keep(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(StartError) as problem:
        App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None, "web": None, **settings}))
    assert words in str(problem.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("EVALD_CODE_ISOLATION", "maybe", "'bubblewrap' or 'none'"),
        ("EVALD_CODE_READ", "relative", "wanted an absolute path"),
        ("EVALD_CODE_ENVIRONMENT", "=x", "wanted NAME or NAME=VALUE"),
        ("EVALD_CODE_CONCURRENCY", "0", "greater than or equal to 1"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError) as problem:
        load_settings(environ={name: value})
    assert name in str(problem.value)
    assert words in str(problem.value)


def test_a_combinator_takes_scripts(folder: Folder) -> None:
    path = folder.shell(PASSES)

    async def call() -> Any:
        async with serving(code_isolation=ISOLATION, code_allow=[path]) as live:
            children = [
                {"type": "code", "config": {"command": [path]}},
                {"type": "contains", "config": {"text": "hello"}},
            ]
            return await live.unary(request(spec("all-of", {"evaluators": children})))

    assert run(call()).summary.verdict == result_pb2.VERDICT_PASSED


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def zombies() -> list[str]:
    """Children of this process that have ended and that nobody has asked about."""
    seen = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit():
                state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) == os.getpid():
                    seen.append(process.name)
    return seen


def test_many_scripts_leave_no_file_open(folder: Folder) -> None:
    path = folder.shell(PASSES)

    async def check() -> None:
        async with serving(code_isolation=ISOLATION, code_allow=[path]) as live:
            one = request(spec("code", {"command": [path]}))
            await live.unary(one)
            before = open_files()
            for _ in range(3):
                answers = await asyncio.gather(*(live.unary(one) for _ in range(10)))
                assert all(answer.summary.success for answer in answers)
            # The last launcher is reaped a moment after its script's answer.
            await live.app.scripts.aclose()
            assert open_files() <= before + 2
            assert zombies() == []

    run(check())
