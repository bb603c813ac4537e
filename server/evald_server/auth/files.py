"""Read files of credentials: TOML that only the owner may write."""

import stat
import tomllib
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from evald_server.files import FileProblem
from evald_server.input_files import read_regular

from .principal import WANTED, Limits

# Enough for 5,000 keys; a larger file is a mistake.
_MAX_BYTES: Final = 4 << 20

# Longer names of tables and fields are cut: one may be a whole key, in the wrong place.
_MAX_SHOWN: Final = 18

_M = TypeVar("_M", bound=BaseModel)


def read_toml(path: Path, *, missing: str, wanted: str) -> dict[str, Any]:
    """Return the content of a TOML file. Raises FileProblem.

    missing: text of the error if the file does not exist. wanted: text of the error if it is not valid TOML.
    """
    try:
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise FileProblem(f"{path}: other users can write this file; run chmod 600 on it")
        return tomllib.loads(read_regular(path, _MAX_BYTES).decode())
    except FileNotFoundError:
        raise FileProblem(f"{path}: there is no such file; {missing}") from None
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}") from problem
    except (ValueError, RecursionError):
        # Without the library's text, which may repeat the file's content. ValueError covers the library's own error,
        # text that is not UTF-8, and numbers with thousands of digits.
        raise FileProblem(f"{path}: {wanted}") from None


def read_table(model: type[_M], table: object, place: str) -> _M:
    """Return a table of a file as a model. place: the file and the name of the table. Raises FileProblem."""
    try:
        return model.model_validate(table)
    except ValidationError as problem:
        raise FileProblem(f"{place}: {explain(problem, model)}") from None


def explain(problem: ValidationError, model: type[BaseModel]) -> str:
    """Return what is wrong with an invalid field, and what was wanted; never a secret in it."""
    errors = problem.errors(include_url=False)
    # An unknown field first: it may be the missing one with a mistake in its name.
    error = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    if not error["loc"]:
        return str(error["ctx"]["error"]) if error["type"] == "value_error" else "wanted a table"
    field = str(error["loc"][0])[:_MAX_SHOWN]
    match error["type"]:
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden":
            known = sorted(name for name in model.model_fields if name != "id")
            return f"{field}: unknown; known keys: {', '.join(known)}"
    value = error["input"]
    # Python writes no number of thousands of digits.
    is_short = not isinstance(value, int) or abs(value) < 10**20
    got = f"got {str(value)[:20]}, " if field in Limits.model_fields and is_short else ""
    return f"{field}: {got}wanted {WANTED[field]}"
