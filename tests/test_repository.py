"""The repository holds what its users need and nothing of the machines it was written on."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Recorded conversations and locks are data: paths in them are other people's.
DATA = {".jsonl", ".json", ".lock", ".binpb"}

HOME = re.compile(r"(?<![\w.])/(?:home|Users)/[a-z][\w.-]*/|(?<![\w.])/(?:root)/")
SHARED_FOLDERS = {"/", "/tmp", "/opt", "/src", "/app", "/srv"}
DOWNLOAD_ADDRESS = re.compile(r'"resolved":|^--(?:extra-)?index-url|^--find-links', re.MULTILINE)


def _listed(*arguments: str) -> list[Path]:
    try:
        run = subprocess.run(["git", *arguments, "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or not a checkout")
    return [path for name in run.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """Everything that is or will be committed."""
    return _listed("ls-files", "--cached", "--others", "--exclude-standard")


def _texts(files: list[Path]) -> list[tuple[str, str]]:
    found = []
    for path in files:
        if path.suffix not in DATA:
            content = path.read_bytes()
            if b"\0" not in content:
                found.append((str(path.relative_to(ROOT)), content.decode("utf-8")))
    return found


def test_no_file_names_a_path_of_one_machine(files: list[Path]) -> None:
    """Neither a home directory nor the folder that the checkout happens to lie in."""
    checkout = ROOT if str(ROOT.parent) in SHARED_FOLDERS else ROOT.parent
    here = re.compile(rf"(?<![\w.]){re.escape(str(checkout))}/")
    offenders = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in _texts(files)
        for number, line in enumerate(text.splitlines(), start=1)
        if HOME.search(line) or here.search(line)
    ]
    assert not offenders, "\n".join(offenders)


def test_no_path_leads_out_of_the_repository(files: list[Path]) -> None:
    upwards = re.compile(r"(?:\.\./)+[a-zA-Z][\w.-]*")
    offenders = [
        f"{name}: {target}"
        for name, text in _texts(files)
        for target in upwards.findall(text)
        if not (ROOT / name).parent.joinpath(target).resolve().is_relative_to(ROOT.resolve())
    ]
    assert not offenders, "\n".join(offenders)


def test_the_links_of_documents_lead_somewhere(files: list[Path]) -> None:
    offenders = []
    for name, text in _texts(files):
        if not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target and not (ROOT / name).parent.joinpath(target).exists():
                offenders.append(f"{name}: {target}")
    assert not offenders, "\n".join(offenders)


def test_locks_name_no_download_address(files: list[Path]) -> None:
    locks = [path for path in files if path.name == "package-lock.json" or path.suffix == ".lock"]
    assert locks
    offenders = [path.name for path in locks if DOWNLOAD_ADDRESS.search(path.read_text(encoding="utf-8"))]
    assert not offenders


def test_nothing_lies_at_the_top_that_a_command_left_there(files: list[Path]) -> None:
    """A command that is tried out in the checkout writes its files there."""
    top = {path.relative_to(ROOT).parts[0] for path in files}
    folders = {".ci", "benchmarks", "client", "deploy", "docs", "examples", "protos", "server", "tests"}
    texts = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md"}
    tools = {".dockerignore", ".gitignore", "Dockerfile", "Makefile", "pyproject.toml"}
    assert top <= folders | texts | tools


def test_no_file_is_a_link_to_somewhere_else(files: list[Path]) -> None:
    offenders = [str(path) for path in files if not path.resolve().is_relative_to(ROOT.resolve())]
    assert not offenders


def test_markdown_has_one_sentence_per_line(files: list[Path]) -> None:
    """Diffs of documents then show the sentence that changed."""
    two_sentences = re.compile(r"^[^|`#].*[a-z)`][.!?] [A-Z][a-z]+ .*[.!?:]$")
    offenders = [
        f"{name}:{number}: {line[:100]}"
        for name, text in _texts(files)
        if name.endswith(".md")
        for number, line in enumerate(_outside_fences(text), start=1)
        if two_sentences.search(line)
    ]
    assert not offenders, "\n".join(offenders)


def _outside_fences(text: str) -> list[str]:
    """The lines of a document, those of code blocks blanked."""
    lines, fenced = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        lines.append("" if fenced else line)
    return lines


def test_every_test_of_the_web_ports_promises_exists() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "tests" / "http" / "README.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("http", "interop", "auth")
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
    )
    assert [name for name in named if f"def {name}(" not in sources] == []
