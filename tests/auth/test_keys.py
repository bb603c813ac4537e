"""Keys: their form, their file, and `evald keys`."""

import json
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evald_server import files
from evald_server.auth.keys import (
    KeyFile,
    add_key,
    is_well_formed,
    new_key,
    read_keys,
    revoke_key,
)
from evald_server.auth.principal import Role
from evald_server.cli import main
from evald_server.day_totals import SPENDING_FILE, DayTotals
from evald_server.files import FileProblem

Keys = Callable[..., "Done"]

_BODY = f"evald_{'a' * 12}_{'B' * 43}"
KEY = f"{_BODY}{zlib.crc32(_BODY.encode()):08x}"


class Done:
    """What a command wrote, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture(name="keys")
def _keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Keys:
    def run(*arguments: str) -> Done:
        try:
            code = main(["keys", *arguments, "--keys-file", str(tmp_path / "keys.toml")])
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


def test_a_key_has_a_form_of_its_own_and_every_typo_shows() -> None:
    assert is_well_formed(KEY)
    for _ in range(20):
        text, _key = new_key("ci", [Role.CALLER])
        assert len(text) == 70
        assert is_well_formed(text)
        for place in range(len(text)):
            other = text[:place] + ("b" if text[place] != "b" else "c") + text[place + 1 :]
            assert not is_well_formed(other), place


@pytest.mark.parametrize("text", ["", "evald_", "é" * 70, "\ud800" * 70, "evald_" + "a" * 64, "a" * 100_000])
def test_garbage_is_no_key(text: str, tmp_path: Path) -> None:
    good, key = new_key("ci", [Role.CALLER])
    add_key(tmp_path / "keys.toml", key)
    keys = KeyFile(tmp_path / "keys.toml")
    assert keys.find(good) == key
    assert keys.find(text) is None
    assert keys.find(good + text) is None or not text
    assert not is_well_formed(text)


def test_a_key_is_made_once_listed_without_its_secret_and_revoked(keys: Keys, tmp_path: Path) -> None:
    made = keys("create", "--principal", "ci", "--role", "caller", "--note", 'the "build" 🏗')
    assert made.code == 0
    text = made.out.strip()
    assert is_well_formed(text)
    assert text not in made.err
    file = tmp_path / "keys.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert text[19:62] not in file.read_text()
    listed = keys("list")
    assert "ci" in listed.out
    assert text[19:62] not in listed.out
    [shown] = json.loads(keys("list", "--json").out)
    assert (shown["principal"], shown["roles"], shown["state"]) == ("ci", ["caller"], "active")
    assert shown["note"] == 'the "build" 🏗'
    assert "digest" not in shown
    assert shown["expires"] > shown["created"], "a key expires unless asked otherwise"
    assert keys("revoke", shown["id"]).code == 0
    assert json.loads(keys("list", "--json").out)[0]["state"] == "revoked"


def test_a_key_that_has_leaked_is_revoked_by_its_whole_text(keys: Keys, tmp_path: Path) -> None:
    leaked = keys("create", "--principal", "ci", "--role", "caller").out.strip()
    assert keys("revoke", f"{leaked[6:18]}x").code == 2
    revoked = keys("revoke", leaked)
    assert (revoked.code, leaked[19:] in revoked.out) == (0, False)
    assert json.loads(keys("list", "--json").out)[0]["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "--role", "caller"), "--principal"),
        (("create", "--principal", "x"), "--role"),
        (("create", "--principal", "x", "--role", "boss"), "boss"),
        (("create", "--principal", "x y", "--role", "caller"), "principal: wanted 1 to 64"),
        (("create", "--principal", "x", "--role", "plugin"), "needs --types"),
        (("create", "--principal", "x", "--role", "plugin", "--types", "a*b"), "types: wanted"),
        (("create", "--principal", "x", "--role", "caller", "--expires", "soon"), "wanted 1d to 3650d"),
        (("create", "--principal", "x", "--role", "caller", "--note", "a\nb"), "note: wanted"),
        (("create", "--principal", "x", "--role", "caller", "--note", "n" * 201), "note: wanted at most 200"),
        (
            ("create", "--principal", "x", "--role", "caller", "--note", f"is {KEY} !"),
            "note: wanted at most 200 printable characters, without an API key",
        ),
        (("revoke", "nothing"), "no key has the id"),
        (("list",), "there is no such file"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_a_wrong_command_says_what_is_wanted(arguments: tuple[str, ...], said: str, keys: Keys) -> None:
    done = keys(*arguments)
    assert done.code == 2
    assert said in done.err
    assert KEY not in done.err


GOOD: dict[str, Any] = {
    "digest": '"' + "0" * 64 + '"',
    "principal": '"ci"',
    "roles": '["caller"]',
    "created": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"digest": '"abc"'}, "digest: wanted 64"),
        ({"digest": '"' + "0" * 65 + '"'}, "digest: wanted 64"),
        ({"digest": "5"}, "digest: wanted 64"),
        ({"note": f'"{KEY}"'}, "note: wanted at most 200 printable characters, without an API key"),
        ({KEY: "1"}, f"{KEY[:18]}: unknown; known keys:"),
        ({"principal": '"a b"'}, "principal: wanted"),
        ({"roles": "[]"}, "roles: wanted a list of one or more of"),
        ({"roles": '["boss"]'}, "roles: wanted a list of one or more of caller"),
        ({"roles": '"caller"'}, "roles: wanted a list"),
        ({"created": "1"}, "created: wanted a time"),
        ({"created": "2026-01-01T00:00:00"}, "created: wanted a time with a time zone"),
        ({"expires": "true"}, "expires: wanted a time"),
        ({"types": '["*x"]'}, "types: wanted a list of names"),
        ({"secret": '"s"'}, "secret: unknown; known keys:"),
        ({"digest": None}, "digest is missing"),
        ({"rate": '"5"'}, "rate: got 5, wanted calls per second"),
        ({"in_flight": "2.5"}, "in_flight: got 2.5, wanted 1 to 1000000 calls"),
        ({"rate": "1" + "0" * 400}, "wanted calls per second"),
    ],
    ids=str,
)
def test_a_wrong_file_of_keys_names_the_key_and_the_field(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    fields = {name: value for name, value in (GOOD | changes).items() if value is not None}
    path.write_text(
        "[keys.abcdefghijkl]\n" + "\n".join(f"{name} = {value}" for name, value in fields.items())
    )
    path.chmod(0o600)
    with pytest.raises(FileProblem, match=r"keys\.abcdefghijkl: ") as refused:
        read_keys(path)
    assert said in str(refused.value)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[key.abcdefghijkl]", "wanted tables [keys.ID] and nothing else"),
        ("keys = []", "wanted tables [keys.ID] and nothing else"),
        ("keys.abcdefghijkl = 5", "keys.abcdefghijkl: wanted a table"),
        (f"[keys.{KEY}]", f"keys.{KEY[:18]}: id: wanted 12 lower case letters and digits"),
        (
            "[keys.abcdefghijklm]\n" + "\n".join(f"{name} = {GOOD[name]}" for name in GOOD),
            "id: wanted 12",
        ),
    ],
)
def test_a_file_of_something_else_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(FileProblem) as refused:
        read_keys(path)
    assert said in str(refused.value)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 5000])
def test_a_file_that_cannot_be_parsed_is_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f"keys = {value}")
    path.chmod(0o600)
    with pytest.raises(FileProblem, match="not a TOML file"):
        read_keys(path)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, new_key("ci", [Role.CALLER])[1])
    path.chmod(0o660)
    with pytest.raises(FileProblem, match="chmod 600"):
        KeyFile(path)


def test_a_mounted_secret_that_is_set_anew_is_read_again(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        add_key(tmp_path / name / "keys.toml", new_key(name, [Role.CALLER])[1])
    data, path = tmp_path / "data", tmp_path / "keys.toml"
    data.symlink_to("first")
    path.symlink_to("data/keys.toml")
    keys = KeyFile(path)
    assert not keys.reload()
    fresh = tmp_path / "fresh"
    fresh.symlink_to("second")
    fresh.replace(data)
    assert keys.reload()
    assert {key.principal for key in keys.content.values()} == {"second"}


def test_a_file_of_keys_keeps_its_owner_and_who_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, new_key("ci", [Role.CALLER])[1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: owners.append((user, group)))
    add_key(path, new_key("ops", [Role.ADMIN])[1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert owners == [(path.stat().st_uid, path.stat().st_gid)]


def test_a_key_is_revoked_in_the_file_that_a_link_points_to(tmp_path: Path) -> None:
    path, link = tmp_path / "data" / "keys.toml", tmp_path / "keys.toml"
    key = new_key("ci", [Role.CALLER])[1]
    add_key(path, key)
    link.symlink_to(path)
    assert revoke_key(link, key.id)
    assert link.is_symlink()
    assert read_keys(path)[key.id].revoked is not None


async def test_a_file_that_is_being_written_in_place_is_read_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    for name in ("first", "second"):
        add_key(path, new_key(name, [Role.CALLER])[1])
    keys, whole = KeyFile(path), path.read_text()
    for part in ("", whole[: whole.rindex("[keys.")]):
        path.write_text(part)
        monkeypatch.setattr(files.time, "time", lambda: path.stat().st_mtime + 0.05)
        assert not await keys.poll()
        assert len(keys.content) == 2
    monkeypatch.undo()
    os.utime(path, (1, 1))
    assert await keys.poll()
    assert {key.principal for key in keys.content.values()} == {"first"}


def test_keys_that_are_made_side_by_side_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    made = [new_key(f"p{number}", [Role.CALLER])[1] for number in range(20)]
    threads = [threading.Thread(target=add_key, args=(path, key)) for key in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_keys(path) == {key.id: key for key in made}


def test_a_key_that_is_revoked_changes_nothing_else_and_stays_revoked_since_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    plugin = new_key(
        "p", [Role.PLUGIN], types=["a.*", "b"], expires=4e9, note="n" * 200, rate=0.5, in_flight=2
    )[1]
    other = new_key("q", [Role.CALLER, Role.ADMIN])[1]
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    add_key(path, plugin)
    assert synced == [False, True], "both the file and its name survive a power failure"
    add_key(path, other)
    assert revoke_key(path, "nothing") is None
    assert read_keys(path) == {key.id: key for key in (plugin, other)}
    assert revoke_key(path, plugin.id) == plugin
    first = read_keys(path)
    assert first == {
        plugin.id: plugin.model_copy(update={"revoked": first[plugin.id].revoked}),
        other.id: other,
    }
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert revoke_key(path, plugin.id) == first[plugin.id]
    assert read_keys(path) == first


def test_limits_are_kept_and_shown(keys: Keys) -> None:
    assert (
        keys("create", "--principal", "ci", "--role", "caller", "--rate", "2.5", "--in-flight", "7").code == 0
    )
    others = ("--judge-usd-per-day", "5", "--turn-rate", "50")
    assert keys("create", "--principal", "night", "--role", "caller", *others).code == 0
    shown, other = json.loads(keys("list", "--json").out)
    assert (shown["rate"], shown["inFlight"], shown["judgeUsdPerDay"]) == (2.5, 7, None)
    assert shown["turnRate"] is None
    assert (other["judgeUsdPerDay"], other["turnRate"]) == (5, 50)
    assert "50 turns/s, $5 a day" in " ".join(keys("list").out.split())


@pytest.mark.parametrize(
    ("limit", "got", "said"),
    [
        ("--rate", "0", "rate: got 0.0, wanted calls per second"),
        ("--in-flight", "0", "in_flight: got 0, wanted 1 to"),
        ("--turn-rate", "0", "turn_rate: got 0.0, wanted turns per second"),
        ("--turn-rate", "nan", "turn_rate: got nan, wanted turns per second"),
        ("--judge-usd-per-day", "-1", "judge_usd_per_day: got -1.0, wanted US dollars"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(keys: Keys, limit: str, got: str, said: str) -> None:
    done = keys("create", "--principal", "ci", "--role", "caller", limit, got)
    assert done.code == 2
    assert said in done.err


def test_what_is_used_up_today_is_listed_with_the_server_s_directory(keys: Keys, tmp_path: Path) -> None:
    for principal in ("ci", "idle"):
        assert keys("create", "--principal", principal, "--role", "caller").code == 0
    totals = DayTotals(tmp_path / SPENDING_FILE)
    totals.add(["ci"], 1.25)
    totals.close()
    listed = json.loads(keys("list", "--json", "--data-dir", str(tmp_path)).out)
    assert [key["judgeUsdToday"] for key in listed] == [1.25, 0]
    assert "$1.25" in keys("list", "--data-dir", str(tmp_path)).out
    assert "today" not in keys("list", "--json").out
    (tmp_path / SPENDING_FILE).write_text("[")
    done = keys("list", "--data-dir", str(tmp_path))
    assert (done.code, SPENDING_FILE in done.err) == (2, True)
