"""Project files, exports and EvalStudio's workspaces are read with the place of every object, or refused with it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from evald_server.cli.exit_codes import CommandError
from evald_server.cli.stored_import import FileRecord, read_files

PROJECT = """\
scenarios:
  - name: A
    evaluators: [is-json]

  - name: B
    evaluators: [is-json]
personas:
  - name: Maria
"""


def _found(*paths: Path, **options: str) -> list[tuple[str, str, str]]:
    return [
        (record.word, record.data["name"], record.place.rpartition("/")[2])
        for record in read_files([str(path) for path in paths], **options).records
    ]


def test_a_project_file_gives_what_others_refer_to_first(tmp_path: Path) -> None:
    (tmp_path / "evald.yaml").write_text(PROJECT)
    expected = [
        ("persona", "Maria", "evald.yaml:8"),
        ("scenario", "A", "evald.yaml:2"),
        ("scenario", "B", "evald.yaml:5"),
    ]
    assert _found(tmp_path) == expected
    assert _found(tmp_path / "evald.yaml") == expected


def test_a_section_with_nothing_below_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "evald.yaml").write_text(f"experiments:\n{PROJECT}")
    assert len(_found(tmp_path)) == 3


def test_stdin_that_is_no_utf8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8", "surrogateescape"))
    with pytest.raises(CommandError, match="stdin:1:1: not UTF-8"):
        read_files(["-"])


def test_folders_and_files_are_named_after_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios/one.yaml").write_text("name: A\n")
    (tmp_path / "scenarios/two.jsonl").write_text('\n{"name": "B"}\n\n{"name": "C\u2028"}\n')
    (tmp_path / "scenarios/notes.txt").write_text("not read")
    (tmp_path / "evals.json").write_text('[\n  {"name": "E"},\n\n  {\n"name": "F"}]')
    assert _found(tmp_path) == [
        ("scenario", "A", "one.yaml:1"),
        ("scenario", "B", "two.jsonl:2"),
        ("scenario", "C\u2028", "two.jsonl:4"),
        ("experiment", "E", "evals.json:2"),
        ("experiment", "F", "evals.json:4"),
    ]


def test_lines_say_their_kind_or_the_command_does(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text('{"kind": "scenario", "name": "A"}\n{"kind": "persona", "name": "P"}\n')
    assert _found(path) == [("persona", "P", "all.jsonl:2"), ("scenario", "A", "all.jsonl:1")]
    with pytest.raises(CommandError, match=r"all\.jsonl:2: kind: got 'persona' \(str\), wanted scenario"):
        read_files([str(path)], "scenario")
    path.write_text('{"name": "A"}')
    assert read_files([str(path)], "scenario").records == [FileRecord("scenario", {"name": "A"}, f"{path}:1")]
    with pytest.raises(CommandError, match="the kind of the record is missing"):
        read_files([str(path)])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace of EvalStudio with two projects."""
    config = {
        "version": 3,
        "name": "w",
        "llmSettings": {"provider": "openai", "apiKey": "sk-secret"},
        "evaluators": ["./evaluators.js"],
        "projects": [{"id": "p-1", "name": "One", "maxConcurrency": 2}, {"id": "p-2", "name": "Two"}],
    }
    (tmp_path / "evalstudio.config.json").write_text(json.dumps(config))
    for project in ("p-1", "p-2"):
        data = tmp_path / "projects" / project / "data"
        data.mkdir(parents=True)
        for name in ("runs", "evals", "scenarios", "personas", "connectors", "executions"):
            (data / f"{name}.json").write_text(json.dumps([{"name": f"{name} of {project}"}]))
    return tmp_path


def test_a_workspace_of_evalstudio_is_read_without_its_keys(workspace: Path) -> None:
    found = read_files([str(workspace)], project="One")
    assert [(record.word, record.data["name"]) for record in found.records] == [
        ("persona", "personas of p-1"),
        ("connector", "connectors of p-1"),
        ("scenario", "scenarios of p-1"),
        ("experiment", "evals of p-1"),
        ("run", "runs of p-1"),
    ]
    left_out = "\n".join(found.left_out)
    assert "sk-secret" not in left_out
    for key in ("llmSettings: models", "evaluators: they are JavaScript", "maxConcurrency: it is a setting"):
        assert key in left_out


def test_one_of_several_projects_has_to_be_named(workspace: Path) -> None:
    with pytest.raises(CommandError, match="2 projects: One, Two"):
        read_files([str(workspace)])
    with pytest.raises(CommandError, match='got the name "Three" of 0 projects'):
        read_files([str(workspace)], project="Three")


def test_a_config_without_projects_has_its_data_beside_it(tmp_path: Path) -> None:
    (tmp_path / "evalstudio.config.json").write_text('{"version": 2, "name": "w"}')
    with pytest.raises(CommandError, match="with its data does not exist"):
        read_files([str(tmp_path)])
    (tmp_path / "data").mkdir()
    (tmp_path / "data/personas.json").write_text('[{"name": "P"}]')
    assert _found(tmp_path) == [("persona", "P", "personas.json:1")]


def test_no_project_leads_out_of_the_workspace(workspace: Path) -> None:
    config = {"projects": [{"id": "../../elsewhere", "name": "One"}]}
    (workspace / "evalstudio.config.json").write_text(json.dumps(config))
    with pytest.raises(CommandError, match="0 projects"):
        read_files([str(workspace)])


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", '{"scenarios": [}', "a.json:1:16: not valid JSON"),
        ("a.json", '{"scenarios":\n[}', "a.json:2:2: not valid JSON"),
        ("a.jsonl", '{"kind": "run"}\n{"kind"', "a.jsonl:2:8: not valid JSON"),
        ("a.yaml", "scenarios: [*x]", "a.yaml:1:13: not valid YAML: got the alias"),
        ("a.yaml", "scenaros: []\npersonas: []", "a.yaml: unknown key 'scenaros'"),
        ("a.yaml", "scenarios: {}", "a.yaml: scenarios: got an object with no keys, wanted a list"),
        ("a.yaml", "scenarios:\n- 3", "a.yaml:2: got 3 (int), wanted an object"),
        ("a.json", '{"personas": [3]}', "a.json:1: got 3"),
        ("a.jsonl", '{"kind": "scenaro"}', "a.jsonl:1: kind: got 'scenaro' (str), wanted persona, connector"),
        ("a.yaml", "", "a.yaml:1: got null, wanted an object"),
        ("missing.yaml", None, "missing.yaml: No such file"),
        ("", None, "the directory has no project file"),
        ("a.yaml", b"\xff", "a.yaml:1:1: not UTF-8"),
        ("a" * 300, None, "aaa: File name too long"),
        (
            "a.json",
            '{"personas": [{"name": "A", "name": "B"}]}',
            "a.json:1: not valid JSON: got a duplicate key 'name'",
        ),
        (
            "a.jsonl",
            '\n{"kind": "run", "kind": "run"}',
            "a.jsonl:2: not valid JSON: got a duplicate key 'kind'",
        ),
        (
            "a.txt",
            '{\n"personas": [],\n"personas": []}',
            "a.txt:3:1: not valid YAML: got a duplicate key 'personas'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, name: str, content: Any, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CommandError) as caught:
        read_files([str(tmp_path / name)])
    assert problem in str(caught.value)
    assert caught.value.code == 2
