"""One JSON value against one JSON Schema, without ever fetching anything.

Also a program: run as a script it is the worker process in which suspicious
schemas are checked. That is why it imports little.
"""

import json
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import IO, Any, Final, NoReturn

import jsonschema_rs

from evald_server import kernel
from evald_server.frames import read_frame, write_frame

DRAFTS: Final[Mapping[str, type[jsonschema_rs.Validator]]] = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
NEWEST: Final = "https://json-schema.org/draft/2020-12/schema"

# Bytes of a compiled pattern. 1 MiB holds `.{1,500}` and compiles in 2 ms.
_PATTERN_SIZE: Final = 1 << 20

MAX_ERRORS: Final = 20
_MAX_TEXT: Final = 200

Error = dict[str, str]
"""One thing wrong: `path` in the value and `keyword` in the schema as JSON Pointers, and `message`."""


def _refuse(uri: str) -> NoReturn:
    raise ValueError("references to other documents are never followed")


def compile_schema(schema: Any, draft: str) -> jsonschema_rs.Validator:
    """A validator: known formats are enforced, unknown ones ignored, patterns run in linear time.

    draft: a key of DRAFTS. Raises jsonschema_rs.ValidationError for a schema
    that is wrong, and ValueError for one that is nested deeper than the library goes.
    """
    return DRAFTS[draft](
        schema,
        validate_formats=True,
        ignore_unknown_formats=True,
        # Without a retriever the library opens http and file references.
        retriever=_refuse,
        # The other engine backtracks.
        pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_SIZE),
    )


def list_errors(validator: jsonschema_rs.Validator, data: Any, *, first_only: bool = False) -> list[Error]:
    """What is wrong with the value, at most MAX_ERRORS things; empty when nothing is.

    first_only: stop at the first one. The library makes all errors before it
    gives one, at about 10 us each.
    """
    if first_only:
        try:
            validator.validate(data)
        except jsonschema_rs.ValidationError as error:
            return [_describe(error)]
        return []
    found = validator.iter_errors(data)
    return [_describe(error) for error, _ in zip(found, range(MAX_ERRORS), strict=False)]


def _describe(error: jsonschema_rs.ValidationError) -> Error:
    message = error.message if len(error.message) <= _MAX_TEXT else error.message[: _MAX_TEXT - 1] + "…"
    nearest = _nearest(error)
    if nearest is not None:
        message = f"{message} (nearest: {nearest['path'] or 'the whole'}: {nearest['message']})"
    return {
        "path": _pointer(error.instance_path),
        "message": message,
        "keyword": _pointer(error.schema_path),
    }


def _nearest(error: jsonschema_rs.ValidationError) -> Error | None:
    """Of the branches of an anyOf or oneOf that all failed: the error of the one that came furthest."""
    branches = [errors[0] for errors in getattr(error.kind, "context", ()) if errors]
    if not branches:
        return None
    return _describe(max(branches, key=lambda inner: len(inner.instance_path)))


def _pointer(path: list[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


@lru_cache(maxsize=64)
def _cached(schema: str, draft: str) -> jsonschema_rs.Validator:
    return compile_schema(json.loads(schema), draft)


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer `{schema, draft, text, seconds}` with a list of errors until the other end closes.

    The answer is null for a text with half of a surrogate pair in it, which the library cannot take.
    seconds: processor time for one request; the kernel ends the process when it
    is over, even when the server is long gone.
    """
    kernel.end_with_parent()
    # 1 GiB: a schema may not take the machine's memory within its time.
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    write_frame(answers, b"null")
    while (frame := read_frame(requests)) is not None:
        request = json.loads(frame)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        validator = _cached(request["schema"], request["draft"])
        data = json.loads(request["text"])
        errors: list[Error] | None = None
        with suppress(UnicodeEncodeError):
            errors = [] if validator.is_valid(data) else list_errors(validator, data, first_only=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(answers, json.dumps(errors).encode())


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
