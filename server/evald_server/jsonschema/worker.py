"""The program of a worker process: runs schema checks that may take long.

A request is a JSON frame `{schema, draft, text, seconds}`. The response is the list of errors, or null for a text
with a lone surrogate, which the library does not accept. The kernel kills the process when a request has used up its
`seconds` of CPU time, even if the server has already exited.
"""

import json
import resource
import signal
import sys
from contextlib import suppress
from functools import lru_cache
from typing import IO, Final

import jsonschema_rs

from evald_server import kernel
from evald_server.frames import read_frame, write_frame
from evald_server.jsonschema.check import SchemaError, compile_schema, list_errors

# 1 GiB, so that a schema cannot use up the machine's memory within its time.
_MAX_MEMORY: Final = 1 << 30


@lru_cache(maxsize=64)
def _compiled(schema: str, draft: str) -> jsonschema_rs.Validator:
    return compile_schema(json.loads(schema), draft)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Send null when ready, then answer requests until the server closes the pipe."""
    kernel.end_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    write_frame(answers, b"null")
    while (frame := read_frame(requests)) is not None:
        request = json.loads(frame)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        validator = _compiled(request["schema"], request["draft"])
        data = json.loads(request["text"])
        errors: list[SchemaError] | None = None
        with suppress(UnicodeEncodeError):
            errors = [] if validator.is_valid(data) else list_errors(validator, data, first_only=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(answers, json.dumps(errors).encode())


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
