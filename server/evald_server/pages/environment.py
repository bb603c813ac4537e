"""Jinja templates of pages: strict, escaping, and with the formats that all pages share."""

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evald_server.pages import formats
from evald_server.untrusted import one_line, visible

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE: Final = Path(__file__).parent


class MissingPackage(ImportError):
    """A package that pages need is not installed. Its text says what to install."""


def environment(*folders: Path) -> "Environment":
    """Return an environment with the templates of these folders and with the shared ones.

    Style sheets and scripts are included as templates, so that nothing has to be marked as safe.
    Raises MissingPackage without Jinja2.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingPackage("HTML pages need Jinja2: pip install 'evald[web]'") from None
    templates = Environment(
        auto_reload=False,
        autoescape=True,
        loader=FileSystemLoader([*folders, _HERE / "templates", _HERE]),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters |= {
        "between": formats.between,
        "count": formats.count,
        "line": _line,
        "moment": formats.moment,
        "money": formats.money,
        "number": formats.number,
        "p_value": formats.p_value,
        "percent": formats.percent,
        "points": formats.points,
        "seconds": formats.seconds,
        "signed": formats.signed,
        "text": shown_text,
        "tokens": formats.tokens,
    }
    templates.globals |= {"mark": formats.mark, "comparison_mark": formats.comparison_mark}
    return templates


def csp_hash(templates: "Environment", name: str) -> str:
    """Return the source expression that allows a style sheet or script that a page includes by this name."""
    text = templates.get_template(name).render()
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _line(text: str) -> str:
    """Filter of names and ids: one line of at most 200 characters."""
    return one_line(text, 200)


def shown_text(text: str) -> str:
    """Filter of reasons: at most 2,000 characters."""
    return visible(text if len(text) <= 2000 else text[:1999] + "…")
