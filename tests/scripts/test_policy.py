"""Only what the operator allows is run, and only as long as it is the file that was allowed."""

import hashlib
import os
from pathlib import Path

import pytest

from evald.result import Verdict
from evald_server.config import Settings
from evald_server.scripts.policy import (
    AllowedCommand,
    AllowList,
    CommandChanged,
    CommandNotAllowed,
)
from evald_server.scripts.runner import ScriptRunner

from ..isolation import ISOLATION
from ..loop import run
from .programs import PASSES, SHELL, Folder, judge, judge_with, refused, words


def digest_of(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_a_command_goes_by_its_path_and_by_its_bare_name(folder: Folder) -> None:
    path = folder.shell(PASSES)
    commands = AllowList([path])
    assert commands.find(path).path == path
    assert commands.find("check.sh").path == path
    assert commands.find(f"{folder.path}/./check.sh").path == path


def test_a_bare_name_that_two_commands_have_is_refused(folder: Folder) -> None:
    (folder.path / "other").mkdir(mode=0o755)
    other = Folder(folder.path / "other").shell(PASSES)
    commands = AllowList([folder.shell(PASSES), other])
    with pytest.raises(CommandNotAllowed, match="2 allowed commands have the name"):
        commands.find("check.sh")
    assert commands.find(other).path == other


@pytest.mark.parametrize(
    "word", ["/bin/sh", "sh", "./check.sh", "../check.sh", "check", "check.sh ", "", "/", "CHECK.SH"]
)
def test_everything_else_is_refused_with_what_is_allowed(folder: Folder, word: str) -> None:
    policy = Settings(code_isolation=ISOLATION, code_allow=[folder.shell(PASSES)])
    [(where, message)] = refused(policy, {"command": [word]})
    assert where == "/command"
    assert "allowed are check.sh" in message
    assert "code_allow" in message
    assert str(folder.path) not in message


def test_a_link_to_an_allowed_command_is_not_allowed_itself(folder: Folder) -> None:
    path = folder.shell(PASSES)
    (folder.path / "link").symlink_to(path)
    with pytest.raises(CommandNotAllowed):
        AllowList([path]).find(f"{folder.path}/link")


def test_an_operator_s_mistakes_are_all_named_at_the_start(folder: Folder) -> None:
    plain = folder.shell(PASSES, "plain")
    Path(plain).chmod(0o644)
    loose = folder.shell(PASSES, "loose")
    Path(loose).chmod(0o777)
    good = folder.shell(PASSES, "good")
    entries = {
        "relative/path": "not an absolute path",
        str(folder.path / "absent"): "No such file",
        str(folder.path): "not a file",
        plain: "chmod +x",
        loose: "every user of the machine can change it",
        f"{good}@sha256:abc": "3 digits after @sha256:, wanted 64",
        f"{good}@sha256:{'0' * 64}": "its sha256 digest is not the one",
    }
    with pytest.raises(ValueError, match="relative/path") as problem:
        AllowList(list(entries))
    for entry, wanted in entries.items():
        assert f"{entry}: " in str(problem.value)
        assert wanted in str(problem.value)


def test_a_command_with_its_digest_runs_until_it_changes(folder: Folder) -> None:
    path = folder.shell(PASSES)
    entry = f"{path}@sha256:{digest_of(path).upper()}"

    scripts = ScriptRunner(Settings(code_isolation=ISOLATION, code_allow=[entry]))
    assert run(judge(scripts, {"command": ["check.sh"]})).verdict is Verdict.PASSED
    before = Path(path).stat()
    with Path(path).open("r+", encoding="utf-8") as file:
        file.write(SHELL + PASSES.replace("fine", "evil"))
    # Neither size nor time of change give it away.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    code, message = words(run(judge(scripts, {"command": ["check.sh"]})))
    assert code == "SCRIPT_FAILED"
    assert "not the one that the operator allowed" in message


def test_a_file_that_was_not_touched_is_not_read_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder.shell(PASSES)
    command = AllowedCommand(f"{path}@sha256:{digest_of(path)}")
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("read again"))
    command.verify()


def test_a_command_that_went_away_is_an_error_of_the_script(folder: Folder) -> None:
    path = folder.shell(PASSES)
    command = AllowedCommand(f"{path}@sha256:{digest_of(path)}")
    scripts = ScriptRunner(Settings(code_isolation=ISOLATION, code_allow=[path]))
    Path(path).unlink()
    with pytest.raises(CommandChanged):
        command.verify()
    code, message = words(run(judge(scripts, {"command": [path]})))
    assert code == "SCRIPT_FAILED"
    assert "did not run" in message
    assert str(folder.path) not in message


@pytest.mark.parametrize(
    "script",
    ["check.sh && id", "check.sh | cat", "check.sh > /tmp/x", "check.sh $(id)", "`id`", "check.sh *"],
)
def test_a_shell_s_syntax_is_refused_without_a_shell(folder: Folder, script: str) -> None:
    [(where, message)] = refused(
        Settings(code_isolation=ISOLATION, code_allow=[folder.shell(PASSES)]), {"script": script}
    )
    assert where == "/script"
    assert "code_shell" in message


def test_a_script_in_words_needs_no_shell(folder: Folder) -> None:
    path = folder.shell("""echo "{\\"pass\\": true, \\"reason\\": \\"$1 $2\\"}" """)
    for script in (f"{path} one 'two three'", ["check.sh", "one", "two three"]):
        result = run(judge(Settings(code_isolation=ISOLATION, code_allow=[path]), {"script": script}))
        assert result.reason == "one two three"


def test_a_script_runs_in_a_shell_where_the_operator_allows_one() -> None:
    policy = Settings(code_shell=True)
    result = run(judge(policy, {"script": """cat >/dev/null && echo '{"score": 0.9}'"""}))
    assert (result.verdict, result.score) == (Verdict.PASSED, 0.9)
    assert refused(policy, {"command": ["/bin/sh", "-c", "id"]})[0][0] == "/command"


@pytest.mark.parametrize(
    ("config", "where", "words"),
    [
        ({}, "", "wanted exactly one of command and script"),
        ({"command": ["check.sh"], "script": "check.sh"}, "", "wanted exactly one of command and script"),
        ({"command": []}, "/command", "at least 1 item"),
        ({"command": "check.sh"}, "/command", "should be a valid list"),
        ({"command": ["check.sh", 1]}, "/command/1", "should be a valid string"),
        ({"command": ["check.sh", "a\0b"]}, "", "NUL"),
        ({"command": ["check.sh", "x" * 40_000]}, "", "longer than 32768 bytes"),
        ({"command": ["check.sh"], "timeoutMs": 0}, "/timeoutMs", "greater than 0"),
        ({"command": ["check.sh"], "threshold": 2}, "/threshold", "less than or equal to 1"),
        ({"command": ["check.sh"], "target": {}}, "/target", "unknown key"),
        ({"command": ["check.sh"], "cwd": "/"}, "/cwd", "code_directory"),
        ({"command": ["check.sh"], "cwd": "below"}, "/cwd", "code_directory"),
        ({"script": "check.sh 'a"}, "/script", "No closing quotation"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_with_its_place(
    folder: Folder, config: dict[str, object], where: str, words: str
) -> None:
    problems = refused(Settings(code_isolation=ISOLATION, code_allow=[folder.shell(PASSES)]), config)
    assert any(place == where and words in message for place, message in problems), problems


@pytest.mark.parametrize("cwd", ["..", "/", "below/../..", "out"])
def test_a_directory_outside_of_the_operator_s_is_refused(folder: Folder, cwd: str) -> None:
    top = folder.path / "top"
    (top / "below").mkdir(parents=True)
    (top / "out").symlink_to("/usr")
    policy = Settings(code_isolation=ISOLATION, code_allow=[folder.shell(PASSES)], code_directory=top)
    [(where, message)] = refused(policy, {"command": ["check.sh"], "cwd": cwd})
    assert where == "/cwd"
    assert "code_directory" in message


def test_nothing_allowed_means_off_and_says_how_to_allow() -> None:
    [(where, message)] = refused(Settings(), {"command": ["check.sh"]})
    assert where == ""
    for way in ("code_allow", "EVALD_CODE_ALLOW", "--allow-code"):
        assert way in message


def test_a_script_with_the_same_command_twice_in_its_list_is_one_command(folder: Folder) -> None:
    path = folder.shell(PASSES)
    assert run(judge_with(path)).verdict is Verdict.PASSED
    assert AllowList([path, path]).find("check.sh").path == path
