"""The example plugins and callers in other languages do what the contract says."""

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evald.plugin.v1 import evaluator_plugin_service_pb2 as service_pb
from evald.plugin.v1 import evaluator_plugin_service_pb2_grpc
from evald.plugin.v1 import registry_service_pb2 as pb
from evald.v1 import result_pb2

from .examples import LANGUAGES, WAITING, Language, run, started
from .scripted_registry import Registry, task

BUF = str(Path(sys.executable).with_name("buf"))
SERVICE = "evald.plugin.v1.EvaluatorPluginService"

pytestmark = pytest.mark.interop


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    registry.address = registry.start()
    yield registry
    registry.stop()


def test_a_plugin_that_dials_out_says_hello_works_and_pongs(language: Language, registry: Registry) -> None:
    with started(language, "--connect", registry.address) as plugin:
        session = registry.session()
        info = session.hello.plugin
        assert "evald.plugin.v1" in info.contract_versions
        assert [entry.type for entry in info.evaluator_types] == [language.assertion, language.metric]
        assert all(entry.version and entry.config_schema_json for entry in info.evaluator_types)
        assert session.hello.initial_credit == info.max_concurrency > 0
        assert session.hello.instance_id
        session.welcome("first")
        session.send(ping=pb.Ping(nonce=7))
        assert session.receive("pong").nonce == 7

        session.send(task=task("good", language.assertion, language.good, **language.config))
        done = session.receive("completed")
        assert (done.task_id, done.output.verdict) == ("good", result_pb2.VERDICT_PASSED)
        session.send(task=task("bad", language.assertion, language.bad, **language.config))
        done = session.receive("completed")
        assert (done.task_id, done.output.verdict) == ("bad", result_pb2.VERDICT_FAILED)
        assert 0 <= done.output.score < 1
        assert done.output.reason
        assert done.output.checks
        session.send(task=task("measured", language.metric, language.bad))
        done = session.receive("completed")
        assert done.output.verdict == result_pb2.VERDICT_PASSED
        assert math.isclose(done.output.value, language.value)
        assert not done.output.HasField("score")

        plugin.process.terminate()
        session.receive("draining")
        assert session.half_closed()
        session.end()
        assert plugin.wait() == 0


def test_a_plugin_connects_again_to_a_server_that_has_been_away(
    language: Language, registry: Registry
) -> None:
    with started(language, "--connect", registry.address) as plugin:
        session = registry.session()
        session.welcome("first")
        plugin.line("first")
        registry.stop()
        again = Registry()
        time.sleep(1)  # several attempts fail
        assert again.start(registry.address) == registry.address
        try:
            second = again.session()
            assert second.hello.instance_id == session.hello.instance_id
            second.welcome("second")
            second.send(task=task("again", language.assertion, language.good, **language.config))
            assert second.receive("completed").task_id == "again"
        finally:
            again.stop()


def test_a_draining_server_is_left_and_found_again(language: Language, registry: Registry) -> None:
    with started(language, "--connect", registry.address):
        session = registry.session()
        session.welcome("first")
        draining = pb.ServerDraining(reason="restarts")
        draining.reconnect_delay.FromMilliseconds(500)
        session.send(draining=draining)
        assert session.half_closed()
        told = time.monotonic()
        session.end()
        registry.session().welcome("second")
        assert time.monotonic() - told > 0.45


def test_frames_that_fit_nothing_disturb_nothing(language: Language, registry: Registry) -> None:
    with started(language, "--connect", registry.address):
        session = registry.session()
        session.welcome("first")
        session.send(task=task("unknown", "acme.no-such-type", "x"))
        done = session.receive("completed")
        assert (done.output.verdict, done.task_id) == (result_pb2.VERDICT_ERROR, "unknown")
        assert done.output.error.code == "UNKNOWN_TYPE"
        session.send(cancel_task_id="never-sent")
        session.send(task=task("after", language.assertion, language.good, **language.config))
        assert session.receive("completed").task_id == "after"


def test_a_cancelled_task_ends_and_gives_its_credit_back(language: Language, registry: Registry) -> None:
    with started(language, "--connect", registry.address, waiting=True) as plugin:
        session = registry.session()
        session.welcome("first")
        session.send(task=task("cancelled", "test.wait", "", seconds=100))
        plugin.line("began")
        session.send(ping=pb.Ping(nonce=1))
        assert session.receive("pong").active_tasks == 1
        session.send(cancel_task_id="cancelled")
        done = session.receive("completed")
        assert (done.task_id, done.output.error.code) == ("cancelled", "CANCELLED")
        plugin.line("told to stop")
        session.send(ping=pb.Ping(nonce=2))
        assert session.receive("pong").active_tasks == 0


def test_faults_are_errors_and_say_nothing_of_the_inside(language: Language, registry: Registry) -> None:
    with started(language, "--connect", registry.address, waiting=True) as plugin:
        session = registry.session()
        session.welcome("first")
        session.send(task=task("raises", "test.wait", "", raise_=True))
        late = task("late", "test.wait", "", seconds=100)
        late.timeout.FromMilliseconds(100)
        session.send(task=late)
        outputs = {done.task_id: done.output for done in (session.receive("completed") for _ in range(2))}
        assert outputs["raises"].error.code == "EVALUATOR_EXCEPTION"
        assert "a secret" not in str(outputs["raises"])
        plugin.line("a secret")  # its own log has it
        assert outputs["late"].error.code == "TIMEOUT"
        plugin.line("told to stop")
        assert {output.verdict for output in outputs.values()} == {result_pb2.VERDICT_ERROR}


def test_tasks_run_side_by_side_and_are_finished_before_the_end(
    language: Language, registry: Registry
) -> None:
    with started(language, "--connect", registry.address, waiting=True) as plugin:
        session = registry.session()
        session.welcome("first")
        session.send(task=task("long", "test.wait", "", seconds=1.5))
        session.send(task=task("short", "test.wait", "", seconds=0.1))
        assert session.receive("completed").task_id == "short"
        plugin.process.terminate()
        assert session.receive("draining").reason
        session.send(ping=pb.Ping(nonce=1))
        assert session.receive("pong").nonce == 1
        done = session.receive("completed")
        assert (done.task_id, done.output.verdict) == ("long", result_pb2.VERDICT_PASSED)
        assert session.half_closed()
        session.end()
        assert plugin.wait() == 0


def test_a_listening_plugin_finishes_its_calls_before_the_end(language: Language) -> None:
    with (
        started(language, "--listen", "127.0.0.1:0", waiting=True) as plugin,
        grpc.insecure_channel(plugin.listening()) as channel,
    ):
        stub = evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceStub(channel)
        request = service_pb.EvaluateRequest(task=task("long", "test.wait", "", seconds=1))
        call = stub.Evaluate.future(request, timeout=30)
        plugin.line("began")
        assert plugin.terminate() == 0
        assert call.result().output.verdict == result_pb2.VERDICT_PASSED


def test_a_call_that_is_cancelled_stops_its_evaluator(language: Language) -> None:
    with (
        started(language, "--listen", "127.0.0.1:0", waiting=True) as plugin,
        grpc.insecure_channel(plugin.listening()) as channel,
    ):
        stub = evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceStub(channel)
        request = service_pb.EvaluateRequest(task=task("long", "test.wait", "", seconds=100))
        call = stub.Evaluate.future(request, timeout=120)
        plugin.line("began")
        call.cancel()
        plugin.line("told to stop")


@pytest.mark.parametrize(
    "language", [each for each in LANGUAGES if each.unit_tests], ids=lambda each: each.name, indirect=True
)
def test_its_own_tests_pass(language: Language) -> None:
    ended = run(language, language.unit_tests, seconds=400)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_readme_says_how_it_is_built_and_started_here(language: Language) -> None:
    readme = (language.folder / "README.md").read_text(encoding="utf-8")
    start = " ".join(language.plugin)
    for wanted in (
        *(command for command in map(" ".join, language.builds) if str(WAITING) not in command),
        f"{start} --connect 127.0.0.1:50051",
        f"{start} --listen 127.0.0.1:50061",
        f"{start} --listen 127.0.0.1:50061 --register 127.0.0.1:50051",
        f"{' '.join(language.caller)} 127.0.0.1:50051 '{language.assertion}={{",
        "evald conformance --target 127.0.0.1:50061",
        "evald conformance --attach --listen 127.0.0.1:50051",
    ):
        assert wanted in readme, wanted


@pytest.mark.parametrize("language", [LANGUAGES[0]], ids=["go"], indirect=True)
def test_the_generated_code_follows_the_contract(language: Language, tmp_path: Path) -> None:
    """`buf generate` in the folder makes what is committed there."""
    ended = run(language, [BUF, "generate", "--output", str(tmp_path)], seconds=300)
    assert ended.returncode == 0, ended.stderr
    fresh = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.go")}
    assert len(fresh) >= 11
    kept = {
        path.relative_to(language.folder): path.read_bytes() for path in language.folder.glob("gen/**/*.go")
    }
    assert fresh == kept


@pytest.mark.parametrize(
    "way", [("--connect",), ("--listen", "127.0.0.1:0", "--register")], ids=["connect", "register"]
)
def test_a_refused_plugin_ends_and_says_why(language: Language, registry: Registry, way: Any) -> None:
    registry.refusal = grpc.StatusCode.PERMISSION_DENIED
    with started(language, *way, registry.address) as plugin:
        assert plugin.wait() == 1
        plugin.line("refused by the test")


def test_a_plugin_that_listens_describes_itself_works_and_is_healthy(language: Language) -> None:
    with (
        started(language, "--listen", "127.0.0.1:0") as plugin,
        grpc.insecure_channel(plugin.listening()) as channel,
    ):
        stub = evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceStub(channel)
        described = stub.Describe(
            service_pb.DescribeRequest(contract_versions=["evald.plugin.v1"]), timeout=10
        )
        assert [entry.type for entry in described.plugin.evaluator_types] == [
            language.assertion,
            language.metric,
        ]
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

        for answer, verdict in ((language.good, "VERDICT_PASSED"), (language.bad, "VERDICT_FAILED")):
            request = service_pb.EvaluateRequest(
                task=task("t", language.assertion, answer, **language.config)
            )
            first, second = stub.Evaluate(request, timeout=30), stub.Evaluate(request, timeout=30)
            assert result_pb2.Verdict.Name(first.output.verdict) == verdict
            assert first == second

        unknown = service_pb.EvaluateRequest(task=task("t", "acme.no-such-type", "x"))
        assert stub.Evaluate(unknown, timeout=30).output.error.code == "UNKNOWN_TYPE"
        assert plugin.terminate() == 0


@pytest.mark.parametrize("size", [0, 1 << 20], ids=["empty", "1 MiB"])
def test_no_answer_is_too_short_or_too_long(language: Language, size: int) -> None:
    with (
        started(language, "--listen", "127.0.0.1:0") as plugin,
        grpc.insecure_channel(plugin.listening()) as channel,
    ):
        stub = evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceStub(channel)
        text = "Привет, 世界. " * (size // 25)
        for type_ in (language.assertion, language.metric):
            config = language.config if type_ == language.assertion else {}
            answer = stub.Evaluate(
                service_pb.EvaluateRequest(task=task("t", type_, text, **config)), timeout=10
            )
            assert answer.output.verdict in {result_pb2.VERDICT_PASSED, result_pb2.VERDICT_FAILED}


def test_a_turn_without_an_answer_fails_and_measures_0(language: Language) -> None:
    with (
        started(language, "--listen", "127.0.0.1:0") as plugin,
        grpc.insecure_channel(plugin.listening()) as channel,
    ):
        stub = evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceStub(channel)
        silent = task("t", language.assertion, "", **language.config)
        del silent.context.messages[1:]
        answer = stub.Evaluate(service_pb.EvaluateRequest(task=silent), timeout=30)
        assert answer.output.verdict == result_pb2.VERDICT_FAILED
        assert answer.output.reason == "No assistant message found"
        silent.type = language.metric
        silent.config.Clear()
        answer = stub.Evaluate(service_pb.EvaluateRequest(task=silent), timeout=30)
        assert (answer.output.verdict, answer.output.value) == (result_pb2.VERDICT_PASSED, 0)
        assert answer.output.metadata["available"] is False


def test_a_lease_is_renewed_replaced_when_expired_and_given_back(
    language: Language, registry: Registry
) -> None:
    with started(language, "--listen", "127.0.0.1:0", "--register", registry.address) as plugin:
        first = registry.registered.get(timeout=20)
        assert first.target == plugin.listening()
        assert [entry.type for entry in first.plugin.evaluator_types] == [language.assertion, language.metric]
        for _ in range(3):
            assert registry.renewed.acquire(timeout=20)
        registry.lease_state = pb.LEASE_STATE_EXPIRED
        second = registry.registered.get(timeout=20)
        assert second.instance_id == first.instance_id
        for _ in range(3):
            assert registry.renewed.acquire(timeout=20)
        plugin.process.terminate()
        goodbye = registry.deregistered.get(timeout=20)
        assert (goodbye.lease_id, goodbye.drain) == ("lease-2", True)
        assert plugin.wait() == 0


def test_a_registered_plugin_is_back_after_the_server_was_away(
    language: Language, registry: Registry
) -> None:
    with started(language, "--listen", "127.0.0.1:0", "--register", registry.address):
        first = registry.registered.get(timeout=20)
        assert registry.renewed.acquire(timeout=20)
        registry.stop()
        again = Registry()
        time.sleep(1)  # several attempts fail
        assert again.start(registry.address) == registry.address
        try:
            assert again.registered.get(timeout=20).instance_id == first.instance_id
            assert again.renewed.acquire(timeout=20)
        finally:
            again.stop()


def test_a_revoked_plugin_does_not_come_back(language: Language, registry: Registry) -> None:
    with started(language, "--listen", "127.0.0.1:0", "--register", registry.address) as plugin:
        registry.registered.get(timeout=20)
        registry.lease_state = pb.LEASE_STATE_REVOKED
        assert plugin.wait() == 0
        plugin.line("operator")
        assert registry.registered.empty()
