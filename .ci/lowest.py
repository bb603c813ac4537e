"""Prints the oldest packages that pyproject.toml promises to work with, as pip constraints."""

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
    name, _, version = requirement.partition(">=")
    name = name.partition("[")[0]
    print(f"{name}=={version}.*")
