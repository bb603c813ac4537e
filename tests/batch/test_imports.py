"""The program of a batch process: what it loads, and how it ends without a server."""

import os
import subprocess
import sys


def test_a_batch_process_loads_nothing_that_only_the_server_needs() -> None:
    code = (
        "import runpy, sys; runpy.run_module('evald_server.batch', run_name='__main__', alter_sys=True); "
        "print(*sys.modules, file=sys.stderr)"
    )
    # Without a server, whose config it waits for, it ends.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert {"evald_server.engine.run", "evald.evaluator", "re2", "jsonschema_rs"} <= loaded
    unwanted = {"grpc", "openai", "prometheus_client", "sqlite3", "uvloop", "httpx", "jsonschema", "rich"}
    assert not unwanted & loaded


def test_a_process_whose_server_is_gone_ends_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "evald_server.batch"],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
