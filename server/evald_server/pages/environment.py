"""The Jinja environment of pages: strict, with autoescaping and the shared formats."""

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
    """A package that pages need is not installed. The message names the package to install."""


def environment(*folders: Path) -> "Environment":
    """Return an environment with the templates of these folders and with the shared ones.

    Style sheets and scripts are included as templates, so that no text must be marked as safe.
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
        "score": formats.score,
        "seconds": formats.seconds,
        "signed": formats.signed,
        "text": shown_text,
        "tokens": formats.tokens,
    }
    templates.globals |= {"mark": formats.mark, "comparison_mark": formats.comparison_mark}
    return templates


def csp_hash(templates: "Environment", name: str) -> str:
    """Return the CSP source expression for a style sheet or script that a page includes. name: of its template."""
    text = templates.get_template(name).render()
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _line(text: str) -> str:
    """Format a name or id: one line of at most 200 characters."""
    return one_line(text, 200)


def shown_text(text: str) -> str:
    """Format a reason: at most 2,000 characters."""
    return visible(text if len(text) <= 2000 else text[:1999] + "…")
