"""Export and import of scenarios as JSON Lines."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final
from uuid import NAMESPACE_URL, uuid4, uuid5

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from evald.convert.resources import SCENARIO
from evald.errors import InvalidInput
from evald.v1 import context_pb2
from evald_server.http.api.catalog import authorise
from evald_server.http.calls import CallFailed
from evald_server.http.errors import error_info
from evald_server.http.site import Site
from evald_server.http.streams import NDJSON
from evald_server.methods import SCENARIOS

from .forms import Problems, read_json
from .page_edit import read_posted
from .rendering import render
from .resources import Resources, note

# Most lines of an import whose errors are shown.
_MOST_WRONG: Final = 100
# Most characters of a refused text that the form shows again.
_MOST_SHOWN: Final = 50_000


async def export(site: Site, request: Request) -> Response:
    """Return all scenarios, one per line."""
    store = Resources(SCENARIOS, site, request)
    first, token = await store.page()
    name = {"Content-Disposition": 'attachment; filename="scenarios.jsonl"'}
    lines = _lines(store, first, token)
    return _Export(lines, headers=name, media_type=NDJSON)


class _Export(StreamingResponse):
    """A streamed response that closes its generator, also when the caller disconnects."""

    body_iterator: AsyncGenerator[bytes]

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


async def _lines(store: Resources, found: list[context_pb2.Scenario], token: str) -> AsyncGenerator[bytes]:
    while True:
        for one in found:
            yield json.dumps(SCENARIO.write(one), ensure_ascii=False).encode() + b"\n"
        if not token:
            return
        found, token = await store.page(token)


async def import_form(site: Site, request: Request) -> Response:
    """Show the form."""
    await authorise(site, request)
    return await _show(site, request, "", "", 0, Problems())


async def do_import(site: Site, request: Request) -> Response:
    """Store the posted scenarios. All lines are parsed before any is stored. Refused ones stay in the form."""
    await authorise(site, request)
    posted = await read_posted(request)
    text, key = posted.get("lines", ""), posted.get("form", "")
    problems = Problems()
    scenarios = await asyncio.to_thread(_read, text, problems)
    if not scenarios and not problems:
        problems.add("", "got an empty text, wanted one scenario per line")
    if problems:
        return await _show(site, request, key, text, 0, problems)
    store = Resources(SCENARIOS, site, request)
    left: list[tuple[int, str, list[str]]] = []
    for number, line, scenario in scenarios:
        if key and not scenario.id:
            # The same line of the same form gets the same id, because a form may be sent twice.
            scenario.id = str(uuid5(NAMESPACE_URL, json.dumps((key, line))))
        try:
            await store.create(scenario)
        except CallFailed as problem:
            refused = Problems()
            if error_info(problem).reason == "RESOURCE_CHANGED":
                refused.add(
                    "", f"another scenario already has the id {scenario.id!r}; choose another one, or omit it"
                )
            else:
                note(problem, refused, "scenario")
            left.append((number, line, refused.rest()))
    rest = "\n".join(line for _, line, _ in left)
    for place, (number, _, said) in enumerate(left[:_MOST_WRONG], start=1):
        for one in said:
            problems.add(f"/line {place if _is_shown(rest) else number}", one)
    if len(left) > _MOST_WRONG:
        problems.add("", f"{len(left) - _MOST_WRONG} more lines were not stored")
    return await _show(site, request, key, rest, len(scenarios) - len(left), problems)


def _is_shown(text: str) -> bool:
    """Return whether the form shows a text again. Pages are small, and users have long texts in a file."""
    return len(text) <= _MOST_SHOWN


def _read(text: str, problems: Problems) -> list[tuple[int, str, context_pb2.Scenario]]:
    """Parse scenarios. Returns the number, text and scenario of each line. Errors of the first 100 invalid lines are
    added to problems; then reading stops."""
    scenarios, wrong = [], 0
    for number, line in enumerate(text.split("\n"), start=1):
        if wrong >= _MOST_WRONG:
            problems.add(
                "",
                f"the lines from {number} on were not read, because too many lines before them are invalid",
            )
            break
        if line.strip():
            try:
                scenarios.append((number, line, SCENARIO.read(read_json(line))))
                continue
            except InvalidInput as problem:
                problems.add(f"/line {number}", str(problem))
            except (ValueError, RecursionError) as problem:
                problems.add(f"/line {number}", f"not valid JSON: {problem}")
            wrong += 1
    return scenarios


async def _show(
    site: Site, request: Request, key: str, lines: str, stored: int, problems: Problems
) -> Response:
    return await render(
        site,
        request,
        "import.html",
        status=400 if problems else 200,
        key=key or str(uuid4()),
        lines=lines if _is_shown(lines) else "",
        kept=_is_shown(lines),
        stored=stored,
        problems=problems.rest(),
    )
