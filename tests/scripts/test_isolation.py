"""What a script tries to reach from inside: each probe succeeds where nothing isolates it, where it can,
and fails in every isolation."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from evald.result import Verdict
from evald_server.config import Settings
from evald_server.scripts import isolation
from evald_server.scripts.build import build_scripts

from ..loop import run
from .programs import PASSES, Folder, judge, judge_with, refused, words

SECRET = "canary-0b9e"


class Probe(NamedTuple):
    """What a script tries. succeeds: whether it does where nothing isolates it; None where that depends on
    the machine."""

    code: str
    succeeds: bool | None = True


PROBES = {
    "read a file": Probe("assert 'canary' in open(secret).read()"),
    "read through /proc/self/root": Probe("assert 'canary' in open('/proc/self/root' + secret).read()"),
    "read through its parent's directory": Probe(
        "os.chdir(os.path.dirname(secret)); assert 'canary' in open(os.path.basename(secret)).read()"
    ),
    "read the accounts": Probe("assert open('/etc/passwd').read()"),
    "list a directory": Probe("assert os.listdir(os.path.dirname(secret))"),
    "list the top": Probe("assert 'root' in os.listdir('/')"),
    "read the server's environment": Probe("assert open(f'/proc/{server}/environ').read()", None),
    "read the server's command line": Probe("assert open(f'/proc/{server}/cmdline').read()"),
    "read the server's memory": Probe("open(f'/proc/{server}/mem', 'rb')", None),
    "see the server's files": Probe("assert os.listdir(f'/proc/{server}/fd')", None),
    "overwrite a file": Probe("open(public, 'w').write('owned')"),
    "append to a file": Probe("open(public, 'a').write('owned')"),
    "empty a file": Probe("os.truncate(public, 0)"),
    "remove a file": Probe("os.remove(public)", None),
    "make a file in /tmp": Probe(
        "name = '/tmp/evald-' + os.urandom(8).hex(); open(name, 'w').close(); os.remove(name)"
    ),
    "make a directory": Probe("name = '/tmp/evald-' + os.urandom(8).hex(); os.mkdir(name); os.rmdir(name)"),
    "make a file in /dev/shm": Probe(
        "name = '/dev/shm/evald-' + os.urandom(8).hex(); open(name, 'w').close(); os.remove(name)", None
    ),
    "make a file at the top": Probe("open('/evald-probe', 'w').close()", None),
    "connect to the loopback": Probe("socket.create_connection(('127.0.0.1', port), 2).sendall(b'owned')"),
    "connect over IPv6": Probe("socket.create_connection(('::1', port6), 2).sendall(b'owned')", None),
    "send a datagram": Probe(
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2);"
        "s.sendto(b'owned', ('127.0.0.1', port)); assert s.recv(9)"
    ),
    "listen": Probe(
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); socket.create_connection(('127.0.0.1', port), 2)"
    ),
    "connect to a Unix socket": Probe("socket.socket(socket.AF_UNIX).connect(unix)"),
    "connect to an abstract socket": Probe("socket.socket(socket.AF_UNIX).connect(abstract)"),
    "open a raw socket": Probe("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", False),
    "signal the server": Probe("os.kill(server, 0)", None),
    # PTRACE_SEIZE: to attach would stop these tests themselves.
    "trace the server": Probe("assert libc.ptrace(0x4206, server, 0, 0) == 0", None),
    "become root": Probe("os.setuid(0)", False),
    "be root": Probe("assert os.getuid() == 0 or os.geteuid() == 0", False),
    "hold privileges": Probe("assert int(status()['CapEff'], 16)", False),
    "gain privileges by a program": Probe("assert status()['NoNewPrivs'] == '0'", False),
    "mount": Probe("assert libc.mount(b'none', b'/mnt', b'tmpfs', 0, None) == 0", False),
    "hold a file of the server": Probe("assert [fd for fd in range(3, 256) if is_open(fd)]", False),
}

PREAMBLE = """
import ctypes, socket
secret, public, server, port, port6, unix, abstract = sys.argv[1:]
server, port, port6, abstract = int(server), int(port), int(port6), "\\0" + abstract
libc = ctypes.CDLL(None)
def status():
    return dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
outcomes = {}
def probe(name, code):
    # In a process of its own: a probe may end it, or change what the next one could do.
    child = os.fork()
    if not child:
        try:
            exec(code, globals())
        except (OSError, AssertionError):
            os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    outcomes[name] = {0: "succeeded", 1: "refused"}.get(ended, f"broke: {ended}")
"""

EPILOGUE = """
print(json.dumps({"pass": True, "metadata": outcomes}))
"""


class Target(NamedTuple):
    """What scripts try to reach. heard: what arrived at the loopback canary."""

    secret: Path
    public: Path
    arguments: list[str]
    heard: list[bytes]


@contextmanager
def listening(family: socket.AddressFamily, address: object) -> Iterator[socket.socket]:
    with closing(socket.socket(family)) as server:
        server.bind(address)  # type: ignore[arg-type]
        server.listen()
        yield server


@pytest.fixture
def target(folder: Folder) -> Iterator[Target]:
    outside = folder.path / "outside"
    outside.mkdir(mode=0o755)
    place = Folder(outside)
    secret, public = place.public("secret"), place.public("public")
    secret.write_text(SECRET, encoding="utf-8")
    public.write_text("kept", encoding="utf-8")
    unix, abstract = str(outside / "socket"), f"evald-probe-{os.getpid()}"
    heard: list[bytes] = []
    with (
        listening(socket.AF_INET, ("127.0.0.1", 0)) as tcp,
        listening(socket.AF_INET6, ("::1", 0)) as tcp6,
        listening(socket.AF_UNIX, unix),
        listening(socket.AF_UNIX, f"\0{abstract}"),
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as udp,
    ):
        Path(unix).chmod(0o777)
        tcp.settimeout(0.1)
        udp.settimeout(0.1)
        udp.bind(tcp.getsockname())
        stopping = threading.Event()

        def listen() -> None:
            while not stopping.is_set():
                with suppress(TimeoutError):
                    connection, _ = tcp.accept()
                    with connection:
                        connection.settimeout(2)
                        heard.append(connection.recv(100))

        def echo() -> None:
            while not stopping.is_set():
                with suppress(TimeoutError):
                    data, sender = udp.recvfrom(100)
                    heard.append(data)
                    udp.sendto(data, sender)

        threads = [threading.Thread(target=listen), threading.Thread(target=echo)]
        for thread in threads:
            thread.start()
        try:
            ports = [str(server.getsockname()[1]) for server in (tcp, tcp6)]
            yield Target(
                secret, public, [str(secret), str(public), str(os.getpid()), *ports, unix, abstract], heard
            )
        finally:
            stopping.set()
            for thread in threads:
                thread.join()


def test_a_script_in_isolation_reaches_nothing(policy: Settings, folder: Folder, target: Target) -> None:
    probes = "".join(f"probe({name!r}, {probe.code!r})\n" for name, probe in PROBES.items())
    path = folder.python(f"{PREAMBLE}{probes}{EPILOGUE}")
    result = run(
        judge(policy.model_copy(update={"code_allow": [path]}), {"command": [path, *target.arguments]})
    )
    assert result.error is None, result
    outcomes = dict(result.metadata or {})
    if policy.code_isolation == "none":
        known = {name: probe.succeeds for name, probe in PROBES.items() if probe.succeeds is not None}
        assert {name: outcomes[name] for name in known} == {
            name: "succeeded" if succeeds else "refused" for name, succeeds in known.items()
        }
        return
    assert outcomes == dict.fromkeys(PROBES, "refused")
    assert target.public.read_text(encoding="utf-8") == "kept"
    assert target.heard == []


def test_a_script_that_runs_as_root_would_not(folder: Folder) -> None:
    path = folder.python(
        'print(json.dumps({"pass": True, "metadata": {"uid": os.getuid(), "groups": os.getgroups()}}))'
    )
    seen = run(judge_with(path, Settings(code_isolation="none"))).metadata
    wanted = isolation.NOBODY if os.geteuid() == 0 else os.getuid()
    assert (seen or {})["uid"] == wanted
    assert os.geteuid() != 0 or (seen or {})["groups"] in ([], [wanted])


def test_what_the_operator_lists_can_be_read_and_not_written(
    policy: Settings, folder: Folder, target: Target
) -> None:
    path = folder.python(
        """
        seen = open(sys.argv[1]).read()
        try:
            open(sys.argv[1], "w")
        except OSError:
            seen += " read-only"
        print(json.dumps({"pass": True, "reason": seen}))
        """
    )
    listed = policy.model_copy(update={"code_allow": [path], "code_read": [str(target.secret)]})
    result = run(judge(listed, {"command": [path, str(target.secret)]}))
    assert result.reason == SECRET + ("" if policy.code_isolation == "none" else " read-only")


def test_the_working_directory_is_the_operator_s_and_can_be_read(policy: Settings, folder: Folder) -> None:
    (folder.path / "below").mkdir(mode=0o755)
    (folder.path / "below" / "data.txt").write_text("here", encoding="utf-8")
    path = folder.python(
        'print(json.dumps({"pass": True, "reason": os.getcwd() + " " + open("data.txt").read()}))'
    )
    placed = policy.model_copy(update={"code_directory": folder.path / "below"})
    assert run(judge_with(path, placed)).reason == f"{folder.path}/below here"
    placed = policy.model_copy(update={"code_directory": folder.path})
    assert run(judge_with(path, placed, cwd="below")).reason == f"{folder.path}/below here"


def test_node_and_python_and_the_shell_start_in_isolation(policy: Settings, folder: Folder) -> None:
    node = folder.path / "check.js"
    node.write_text(
        "#!/usr/bin/env node\n"
        "const turn = JSON.parse(require('fs').readFileSync(0));\n"
        "console.log(JSON.stringify({pass: turn.answer.includes('BK-'), reason: 'node'}));\n",
        encoding="utf-8",
    )
    node.chmod(0o755)
    if Path("/usr/bin/node").exists():
        assert run(judge_with(str(node), policy)).reason == "node"
    assert run(judge_with(folder.shell(PASSES), policy)).reason == "fine"


def test_where_bubblewrap_is_missing_every_config_is_refused_with_the_next_step(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder.shell(PASSES)
    monkeypatch.setenv("PATH", str(folder.path))
    for installed, problem in (
        (None, "is not installed: install it"),
        ("exit 1", "does not work here (exit code 1): let this user create user namespaces"),
        ("echo bwrap: no namespaces >&2; exit 1", "(bwrap: no namespaces)"),
    ):
        if installed:
            folder.shell(installed, "bwrap")
        caplog.clear()
        scripts = build_scripts(Settings(code_allow=[path]))
        assert [record.getMessage() for record in caplog.records] == [
            f"scripts cannot run: {scripts.unavailable}"
        ]
        [(where, message)] = refused(scripts.settings, {"command": [path]})
        assert (where, message) == ("", scripts.unavailable)
        for part in (
            problem,
            'code_isolation = "none"',
            "EVALD_CODE_ISOLATION=none",
            "scripts then reach the network",
        ):
            assert part in message


def test_without_isolation_scripts_run_where_bubblewrap_is_missing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    settings = Settings(code_allow=[folder.shell(PASSES)], code_isolation="none")
    assert build_scripts(settings).unavailable == ""
    assert caplog.records == []
    result = run(judge_with(*settings.code_allow, settings))
    assert result.verdict is Verdict.PASSED
    assert (result.raw_request or {})["isolation"] == "none"


def test_an_interpreter_outside_of_what_may_be_read_is_an_error_that_says_so(
    policy: Settings, folder: Folder
) -> None:
    if policy.code_isolation == "none":
        pytest.skip("everything may be read")
    (folder.path / "lib").mkdir(mode=0o755)
    interpreter = Folder(folder.path / "lib").shell('exec /bin/sh "$@"', "interpreter")
    script = folder.path / "check"
    script.write_text(f"#!{interpreter}\n{PASSES}", encoding="utf-8")
    script.chmod(0o755)
    code, message = words(run(judge_with(str(script), policy)))
    assert code == "SCRIPT_FAILED"
    assert "did not run" in message
    assert "code_read" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs scripts as somebody else")
def test_a_script_in_a_directory_of_root_s_alone_runs_all_the_same(policy: Settings, folder: Folder) -> None:
    (folder.path / "private").mkdir(mode=0o755)
    private = Folder(folder.path / "private")
    scripts = [
        private.shell(f"cat >/dev/null\n{PASSES}"),
        private.python("print(json.dumps({'pass': True}))"),
    ]
    beside = private.public("beside")
    private.path.chmod(0o700)
    for path in scripts:
        assert run(judge_with(path, policy)).verdict is Verdict.PASSED
    private.path.chmod(0o755)
    peeks = private.shell(f"cat {beside} >&2 || exit 1\n{PASSES}")
    private.path.chmod(0o700)
    assert words(run(judge_with(peeks, policy)))[0] == "SCRIPT_FAILED"
