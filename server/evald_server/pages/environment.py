"""Jinja templates of pages: strict, escaping, and with the formats that all pages share."""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evald_server.pages import formats

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE: Final = Path(__file__).parent


class MissingPackage(ImportError):
    """A package that pages need is not installed. Its text says what to install."""


def environment(*folders: Path) -> "Environment":
    """Return an environment with the templates of these folders and with the shared ones.

    Raises MissingPackage without Jinja2.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingPackage("HTML pages need Jinja2: pip install 'evald[web]'") from None
    templates = Environment(
        autoescape=True,
        loader=FileSystemLoader([*folders, _HERE / "templates"]),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters |= {
        "between": formats.between,
        "count": formats.count,
        "moment": formats.moment,
        "money": formats.money,
        "number": formats.number,
        "p_value": formats.p_value,
        "percent": formats.percent,
        "points": formats.points,
        "seconds": formats.seconds,
        "signed": formats.signed,
        "tokens": formats.tokens,
    }
    templates.globals |= {"mark": formats.mark, "comparison_mark": formats.comparison_mark}
    return templates


@cache
def style_sheet() -> str:
    """Return the style sheet of all pages."""
    return _HERE.joinpath("style.css").read_text(encoding="utf-8")


def csp_hash(text: str) -> str:
    """Return the source expression that allows an inline style sheet or script with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
