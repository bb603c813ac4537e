"""Style sheet, scripts and icon: below an address that changes with their content, so that browsers keep them for good."""

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def address(name: str) -> str:
    """Return the address of a file. Raises KeyError if there is none."""
    if name not in _assets():
        raise KeyError(name)
    return f"/console/static/{_digest()}/{name}"


async def asset(request: Request) -> Response:
    """Answer with a file."""
    name = request.path_params["name"]
    content = _assets().get(name)
    if content is None or request.path_params["digest"] != _digest():
        return Response("no such file", 404, media_type="text/plain")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _assets() -> dict[str, bytes]:
    found = {
        one.name: one.read_bytes()
        for one in files(__package__).joinpath("static").iterdir()
        if one.name.rpartition(".")[2] in _TYPES
    }
    style = files("evald_server.pages").joinpath("style.css").read_text(encoding="utf-8")
    found["style.css"] = style.encode()
    return {
        name: _packed(content.decode()).encode() if name.endswith(".css") else content
        for name, content in found.items()
    }


def _packed(style: str) -> str:
    """Return a style sheet without comments and the space that only people need. Strings in it have no punctuation."""
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    return re.sub(r"\s*([{};,])\s*", r"\1", style).replace(": ", ":").replace(";}", "}").strip()


@cache
def _digest() -> str:
    """Return one digest of all files: scripts import each other by relative names."""
    together = hashlib.sha256()
    for name, content in sorted(_assets().items()):
        together.update(f"{name} {len(content)} ".encode() + content)
    return together.hexdigest()[:16]
