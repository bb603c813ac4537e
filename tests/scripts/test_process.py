"""A script gets what it needs, and nothing of it is left when it has ended, however it behaves.

Every test runs in every isolation that this machine has, and without any.
"""

import asyncio
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from evald.result import Verdict
from evald.scope import SCOPE, Scope
from evald_server.config import Settings
from evald_server.scripts import isolation
from evald_server.scripts.runner import ScriptRunner

from ..attempts import attempts
from ..isolation import ISOLATION
from ..loop import run
from .programs import PASSES, Folder, judge, judge_with, living, words

# What a loaded machine may take to start Python twice, or to end what runs for 60 s by itself.
PATIENCE = 20.0


def gone(marker: str) -> None:
    """Return when no process with the marker is left; fails when some stay."""
    deadline = time.monotonic() + PATIENCE
    while pids := living(marker):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.005)


def started(marker: str, count: int) -> None:
    """Return when so many processes with the marker run."""
    deadline = time.monotonic() + PATIENCE
    while len(living(marker)) < count:
        assert time.monotonic() < deadline, f"{living(marker)} of {count} run"
        time.sleep(0.01)


def test_the_turn_comes_in_and_the_verdict_goes_out(policy: Settings, folder: Folder) -> None:
    path = folder.python(
        """
        turn = json.load(sys.stdin)
        print(json.dumps({"pass": "BK-12345" in turn["answer"], "reason": turn["config"]["word"]}))
        """
    )
    result = run(judge_with(path, policy, config={"word": "grün"}))
    assert (result.verdict, result.reason) == (Verdict.PASSED, "grün")


@pytest.mark.parametrize(
    "reads",
    ["cat >/dev/null", "cat /dev/stdin >/dev/null", "head -c 10 >/dev/null", "exec 0<&-", ":"],
    ids=["all", "by name", "a part", "closes it", "nothing"],
)
def test_how_a_script_reads_its_input_is_its_own_business(
    policy: Settings, folder: Folder, reads: str
) -> None:
    path = folder.shell(f"{reads}\necho note >/dev/stderr\n{PASSES}")
    # Beyond what a pipe holds, so that a script that does not read would hold up who writes.
    result = run(judge_with(path, policy, config={"long": "x" * 200_000}))
    assert result.verdict is Verdict.PASSED, result


def test_arguments_are_handed_over_as_they_are(policy: Settings, folder: Folder) -> None:
    path = folder.python('print(json.dumps({"pass": True, "metadata": {"argv": sys.argv[1:]}}))')
    given = ["$(id)", "a b", "", "*", "ü", "--", "'"]
    allowed = policy.model_copy(update={"code_allow": [path]})
    result = run(judge(allowed, {"command": [path, *given]}))
    assert result.metadata == {"argv": given}


def test_a_script_sees_nothing_of_the_server_s_environment(
    policy: Settings, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALD_JUDGE_API_KEY", "sk-canary")
    monkeypatch.setenv("EVALD_TEST_LISTED", "listed")
    path = folder.python('print(json.dumps({"pass": True, "metadata": dict(os.environ)}))')
    listed = policy.model_copy(
        update={"code_environment": ["EVALD_TEST_LISTED", "EVALD_TEST_FIXED=a=b", "EVALD_TEST_ABSENT"]}
    )
    seen = dict(run(judge_with(path, listed)).metadata or {})
    # The kernel's way of starting "#!" adds none; some Pythons add LC_CTYPE to their own, bubblewrap adds PWD.
    assert set(seen) - {"LC_CTYPE", "PWD"} == {"PATH", "LANG", "EVALD_TEST_LISTED", "EVALD_TEST_FIXED"}
    # "listed" is six letters long and the operator's, so that results do not repeat it.
    assert seen["EVALD_TEST_LISTED"] == "[redacted]"
    assert seen["EVALD_TEST_FIXED"] == "a=b"


def test_a_script_holds_no_file_of_the_server_open(policy: Settings, folder: Folder) -> None:
    path = folder.python(
        'print(json.dumps({"pass": True, "metadata": {"fds": os.listdir("/proc/self/fd")}}))'
    )
    with Path(__file__).open("rb") as ours:
        os.set_inheritable(ours.fileno(), True)
        result = run(judge_with(path, policy))
    # One more than the three: the directory that is being listed.
    assert len((result.metadata or {})["fds"]) == 4


def test_scripts_run_beside_a_thousand_open_files(policy: Settings, folder: Folder) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    reader, writer = os.pipe()
    files = [os.dup(reader) for _ in range(1100)]
    try:
        assert run(judge_with(folder.shell(PASSES), policy)).verdict is Verdict.PASSED
    finally:
        for fd in (*files, reader, writer):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "misbehaves",
    [
        pytest.param("time.sleep(60)", id="sleeps"),
        pytest.param("while True: pass", id="spins"),
        pytest.param(
            "[signal.signal(n, signal.SIG_IGN) for n in (15, 2, 1)]; time.sleep(60)", id="ignores signals"
        ),
        pytest.param("os.fork(); time.sleep(60)", id="forks"),
        pytest.param("os.fork() or os.setsid(); os.fork(); time.sleep(60)", id="leaves its session"),
        pytest.param("os.fork() and os.fork() and os._exit(0); os.setsid(); time.sleep(60)", id="daemon"),
        pytest.param("os.close(1); os.close(2); time.sleep(60)", id="closes its output"),
        pytest.param("os.kill(os.getpid(), signal.SIGSTOP)", id="stops itself"),
        pytest.param("while True: sys.stderr.write('x' * 1000); time.sleep(0.01)", id="talks on"),
    ],
)
def test_a_script_over_its_time_is_killed_with_everything_that_it_started(
    policy: Settings, folder: Folder, misbehaves: str
) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.python(misbehaves)
    # One ends by itself, as soon as a busy machine lets it; what it left behind has no say any more.
    ends = "os._exit(0)" in misbehaves

    async def check() -> tuple[Any, float]:
        scripts = ScriptRunner(policy.model_copy(update={"code_allow": [path]}))
        await judge(scripts, {"command": [path, "warm"], "timeoutMs": 1})
        began = time.monotonic()
        result = await judge(scripts, {"command": [path, marker], "timeoutMs": 30_000 if ends else 400})
        took = time.monotonic() - began
        await asyncio.to_thread(gone, marker)
        await scripts.aclose()
        return result, took

    result, took = run(check())
    if ends:
        assert words(result)[0] == "SCRIPT_OUTPUT_INVALID"
    else:
        assert words(result)[0] == "TIMEOUT"
        assert "killed after 0.4s" in words(result)[1]
    assert took < PATIENCE


def test_cancelling_kills_within_250_ms(policy: Settings, folder: Folder) -> None:
    path = folder.python("os.fork() or os.setsid(); os.fork(); time.sleep(60)")

    async def check() -> None:
        scripts = ScriptRunner(policy.model_copy(update={"code_allow": [path]}))
        for attempt in attempts(0.25):
            marker = f"evald-{secrets.token_hex(8)}"
            task = asyncio.create_task(judge(scripts, {"command": [path, marker]}))
            await asyncio.to_thread(started, marker, 4)
            with attempt:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(gone, marker)
        await scripts.aclose()

    run(check())


def test_what_a_script_leaves_behind_ends_with_it(policy: Settings, folder: Folder) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.shell(f"(setsid sleep 60 {marker} </dev/null >/dev/null 2>&1 &)\n{PASSES}")
    result = run(judge_with(path, policy))
    assert result.verdict is Verdict.PASSED, result
    gone(marker)


def test_output_that_is_not_complete_when_the_time_is_over_is_no_verdict(folder: Folder) -> None:
    place = folder.public("socket")
    place.unlink()
    path = folder.python(
        f"""
        import socket
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect({str(place)!r})
            socket.send_fds(peer, [b"x"], [1])  # whoever takes it may write on when the script has ended
        print('{{"pass": true}}')
        """
    )
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(str(place))
        holder.listen()
        place.chmod(0o666)
        result = run(judge_with(path, Settings(code_isolation="none"), timeoutMs=400))
    assert words(result)[0] == "TIMEOUT"


def test_a_script_that_floods_its_output_is_killed_and_the_loop_stays_free(
    policy: Settings, folder: Folder
) -> None:
    path = folder.shell("exec yes flood")

    async def check() -> tuple[Any, float]:
        worst, stop = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal worst
            while not stop.is_set():
                began = time.thread_time()
                await asyncio.sleep(0.005)
                worst = max(worst, time.thread_time() - began)

        watching = asyncio.create_task(watch())
        result = await judge_with(path, policy)
        stop.set()
        await watching
        return result, worst

    result, worst = run(check())
    assert words(result)[0] == "SCRIPT_OUTPUT_INVALID"
    assert "wrote more than 1048576 bytes to stdout" in words(result)[1]
    # Of processor time between two turns of the loop.
    assert worst < 0.5


def test_a_script_that_floods_its_errors_is_killed(policy: Settings, folder: Folder) -> None:
    path = folder.shell("exec yes flood >&2")
    code, message = words(run(judge_with(path, policy)))
    assert code == "SCRIPT_FAILED"
    assert "to stderr: " in message
    assert len(message) < 2100


def test_output_up_to_the_limit_is_taken(policy: Settings, folder: Folder) -> None:
    path = folder.python('text = json.dumps({"pass": True}); print(text + " " * ((1 << 20) - len(text) - 1))')
    assert run(judge_with(path, policy)).verdict is Verdict.PASSED


def test_memory_is_limited(policy: Settings, folder: Folder) -> None:
    path = folder.python(
        """
        try:
            held = bytearray(300 << 20)
        except MemoryError:
            print('{"pass": true, "reason": "refused"}')
        else:
            print('{"pass": false, "reason": "taken"}')
        """
    )
    assert (
        run(judge_with(path, policy.model_copy(update={"code_memory_bytes": 256 << 20}))).reason == "refused"
    )
    assert run(judge_with(path, policy.model_copy(update={"code_memory_bytes": 512 << 20}))).reason == "taken"


def test_a_fork_bomb_is_bounded_and_ends(policy: Settings, folder: Folder) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.python(
        """
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.01)
        """
    )

    async def check() -> tuple[Any, int]:
        most = 0
        scripts = ScriptRunner(
            policy.model_copy(update={"code_allow": [path], "code_processes": 8, "code_concurrency": 2})
        )
        task = asyncio.create_task(judge(scripts, {"command": [path, marker], "timeoutMs": 4000}))
        while not task.done():
            most = max(most, len(living(marker)))
            await asyncio.sleep(0.02)
        await asyncio.to_thread(gone, marker)
        await scripts.aclose()
        return task.result(), most

    result, most = run(check())
    assert words(result)[0] == "TIMEOUT"
    # 8 for each of 2 scripts, and as many more as other programs of the same user end meanwhile.
    assert 8 < most < 64


def test_processor_time_is_limited_even_where_nobody_watches(policy: Settings, folder: Folder) -> None:
    path = folder.python(
        """
        import resource
        print(json.dumps({"pass": True, "metadata": {
            name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1]
            for name in ("CPU", "CORE", "NOFILE", "FSIZE")
        }}))
        """
    )
    limits = run(judge_with(path, policy, timeoutMs=5000)).metadata
    assert limits == {"CPU": 6, "CORE": 0, "NOFILE": 256, "FSIZE": 16 << 20}


def test_scripts_beyond_the_places_wait_or_are_told_that_all_are_taken(
    policy: Settings, folder: Folder
) -> None:
    sleeper, quick = folder.python("time.sleep(60)"), folder.shell(PASSES)

    async def impatient(scripts: ScriptRunner) -> Any:
        SCOPE.set(Scope(deadline=time.monotonic() + 0.1))
        return await judge(scripts, {"command": [quick]})

    async def check() -> tuple[Any, Any]:
        scripts = ScriptRunner(
            policy.model_copy(update={"code_allow": [sleeper, quick], "code_concurrency": 1})
        )
        running = asyncio.create_task(judge(scripts, {"command": [sleeper], "timeoutMs": 3000}))
        await asyncio.sleep(0)
        busy = await asyncio.create_task(impatient(scripts))
        # The time of a script begins when it begins, and not when it begins to wait.
        after = await judge(scripts, {"command": [quick], "timeoutMs": 2900})
        await running
        await scripts.aclose()
        return busy, after

    busy, after = run(check())
    assert words(busy)[0] == "EVALUATOR_BUSY"
    assert "at most 1 scripts run at a time (setting code_concurrency)" in words(busy)[1]
    assert after.verdict is Verdict.PASSED


def test_the_death_of_the_server_is_the_death_of_its_scripts(policy: Settings, folder: Folder) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.python("os.fork() or os.setsid(); time.sleep(60)")
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import asyncio, sys\n"
            "from tests.scripts.programs import judge\n"
            "from evald_server.config import Settings\n"
            "path, marker, isolation = sys.argv[1:]\n"
            "asyncio.run(judge(Settings(code_allow=[path], code_isolation=isolation), {'command': [path, marker]}))",
            path,
            marker,
            policy.code_isolation,
        ],
        cwd=Path(__file__).parents[2],
    )
    try:
        # The server itself carries the marker too.
        started(marker, 3)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    gone(marker)


def test_a_script_that_kills_what_watches_over_it_gets_no_verdict(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.python("print('{\"pass\": true}', flush=True); os.kill(os.getppid(), 9); time.sleep(60)")
    # As the server's own user: nobody could not kill a launcher of root's.
    monkeypatch.setattr(isolation, "script_user", lambda: None)
    policy = Settings(code_allow=[path], code_isolation="none")
    code, message = words(run(judge(policy, {"command": [path, marker]})))
    assert code == "SCRIPT_FAILED"
    assert "its supervisor process was killed" in message
    gone(marker)


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_both_event_loops_run_and_kill_scripts(folder: Folder, loop: Any) -> None:
    marker = f"evald-{secrets.token_hex(8)}"
    path = folder.shell(f"[ $1 = {marker} ] && sleep 60\n{PASSES}")

    async def check() -> tuple[Any, Any]:
        scripts = ScriptRunner(Settings(code_isolation=ISOLATION, code_allow=[path]))
        fine = await judge(scripts, {"command": [path, "quick"]})
        killed = await judge(scripts, {"command": [path, marker], "timeoutMs": 300})
        await asyncio.to_thread(gone, marker)
        await scripts.aclose()
        return fine, killed

    fine, killed = loop(check())
    assert fine.verdict is Verdict.PASSED
    assert words(killed)[0] == "TIMEOUT"
