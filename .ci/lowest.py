"""Prints the oldest packages that pyproject.toml promises to work with, as pip constraints."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
for requirement in (
    project["dependencies"]
    + extras["server"]
    + extras["fast"]
    + extras["jwt"]
    + extras["postgres"]
    + extras["web"]
):
    lowest = re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", requirement)
    assert lowest, requirement
    print(f"{lowest[1]}=={lowest[2]}.*")
