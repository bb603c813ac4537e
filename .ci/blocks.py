"""Writes the Python blocks of Markdown pages as modules for a type checker: blocks.py FOLDER PAGE..."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/docs"))
from page import blocks

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for page in map(Path, sys.argv[2:]):
    lines: list[str] = []
    for block in blocks(page.read_text(encoding="utf-8")):
        # Tests are not annotated: pytest finds out what their arguments are.
        if block.language == "python" and not block.file.startswith("test_"):
            # The line numbers of a complaint are those of the page.
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    folder.joinpath(f"{page.stem}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
