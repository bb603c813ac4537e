"""The successful controls of a page: what a browser posts."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from jinja2 import Template

from evald_server.http.console import forms
from evald_server.pages.environment import environment

TEMPLATES = Path(forms.__file__).parent / "templates"


class Controls(HTMLParser):
    """Collects names and values of controls, as a browser does when a form is sent without a button."""

    def __init__(self) -> None:
        super().__init__()
        self.posted: dict[str, str] = {}
        self._select = ""
        self._area: str | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name") or "", given.get("value") or ""
        if tag == "input" and (given.get("type") not in ("checkbox", "radio") or "checked" in given):
            self.posted[name] = value
        elif tag == "select":
            self._select = name
        elif tag == "option" and ("selected" in given or self._select not in self.posted):
            self.posted[self._select] = value
        elif tag == "textarea":
            self._area, self._text = name, ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._area is not None:
            self.posted[self._area] = self._text.removeprefix("\n").replace("\n", "\r\n")
            self._area = None

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self._text += data


def posted(page: str) -> dict[str, str]:
    """Return what a browser would post of a page."""
    found = Controls()
    found.feed(page)
    return found.posted


def rendered(field: forms.Field) -> str:
    """Return the HTML of a field."""
    return _template().render(field=field)


@cache
def _template() -> Template:
    return environment(TEMPLATES).from_string('{% import "fields.html" as fields %}{{ fields.one(field) }}')
