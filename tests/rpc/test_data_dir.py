"""A data directory has one server at a time, and is free again however that one ends."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evald_server.app import App, StartError
from evald_server.config import Settings
from evald_server.data_dir import LOCK
from evald_server.store.database import FILE_NAME

from .. import forks
from ..loop import run
from ..processes import EVALD, server_process


def second_server(directory: Path) -> "subprocess.CompletedProcess[str]":
    return forks.run(
        *(EVALD, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(directory)),
        environment={"EVALD_HTTP": "", "EVALD_WEB": ""},
    )


async def starts_and_stops(directory: Path) -> None:
    app = App(Settings(listen="127.0.0.1:0", http=None, web=None, data_dir=directory))
    await app.start()
    await app.stop(0)


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_a_second_server_is_refused_until_the_first_one_is_gone(
    tmp_path: Path, ended_by: signal.Signals
) -> None:
    directory = tmp_path / "data"
    with server_process("--data-dir", str(directory)) as first:
        with pytest.raises(StartError, match=f"process {first.pid}"):
            run(starts_and_stops(directory))
        first.process.send_signal(ended_by)
        first.process.wait(60)
        run(starts_and_stops(directory))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the lock")
@pytest.mark.parametrize("way", ["symbolic link", "hard link", "without the lock file"])
def test_a_second_server_is_refused_whatever_way_leads_to_the_database(tmp_path: Path, way: str) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    other.mkdir()
    with server_process("--data-dir", str(data)) as first:
        if way == "symbolic link":
            (other / FILE_NAME).symlink_to(data / FILE_NAME)
        elif way == "hard link":
            (other / FILE_NAME).hardlink_to(data / FILE_NAME)
        else:
            (data / LOCK).unlink()
            other = data
        with pytest.raises(StartError, match=r"another server uses this database.*EVALD_DATA_DIR"):
            run(starts_and_stops(other))
        first.process.terminate()
        first.process.wait(60)
        run(starts_and_stops(other))


def test_a_database_that_lost_its_content_is_refused_until_somebody_deletes_it(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()  # as a first start leaves it that was killed
    run(starts_and_stops(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(b"")
    with pytest.raises(StartError, match=r"evald.sqlite3 is empty.*backup, or delete it"):
        run(starts_and_stops(tmp_path))
    (tmp_path / FILE_NAME).unlink()
    run(starts_and_stops(tmp_path))


def test_it_is_told_where_the_first_one_is_and_what_to_do(tmp_path: Path) -> None:
    with server_process("--data-dir", str(tmp_path)) as first:
        refused = second_server(tmp_path)
        assert refused.returncode == 2
        assert not refused.stdout
        for told in (str(tmp_path), f"process {first.pid}", "EVALD_DATA_DIR"):
            assert told in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_server_that_could_not_start_or_was_stopped_leaves_it_free(tmp_path: Path) -> None:
    def app(listen: str) -> App:
        return App(Settings(listen=listen, http=None, web=None, data_dir=tmp_path))

    async def main() -> None:
        first = app("127.0.0.1:0")
        await first.start()
        own = asyncio.all_tasks()
        with pytest.raises(StartError, match="another server"):
            await app("127.0.0.1:0").start()
        taken = App(Settings(listen=first.address, http=None, web=None, data_dir=tmp_path / "other"))
        with pytest.raises(StartError, match="is not available"):
            await taken.start()
        assert not [task for task in asyncio.all_tasks() if task not in own]
        await first.stop(0)
        for directory in (tmp_path, tmp_path / "other"):
            await starts_and_stops(directory)

    run(asyncio.wait_for(main(), 60))
