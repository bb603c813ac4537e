"""Checks one JSON value against one JSON Schema. References are never fetched.

Worker processes import this module too, so it imports little.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import jsonschema_rs

from evald_server.untrusted import shorten

DRAFTS: Final[Mapping[str, type[jsonschema_rs.Validator]]] = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
NEWEST: Final = "https://json-schema.org/draft/2020-12/schema"

# Maximum bytes of a compiled pattern. 1 MiB holds `.{1,500}` and compiles in 2 ms.
_PATTERN_SIZE: Final = 1 << 20

MAX_ERRORS: Final = 20
_MAX_TEXT: Final = 200

SchemaError = dict[str, str]
"""A mismatch: `path` in the value and `keyword` in the schema, both JSON Pointers, and `message`."""


def _refuse(uri: str) -> NoReturn:
    raise ValueError("references to other documents are never followed")


def compile_schema(schema: Any, draft: str) -> jsonschema_rs.Validator:
    """Return a validator that enforces known formats, ignores others, and runs patterns in linear time.

    draft: a key of DRAFTS. Raises jsonschema_rs.ValidationError for an invalid schema, and ValueError for one that is
    nested too deep for the library.
    """
    return DRAFTS[draft](
        schema,
        validate_formats=True,
        ignore_unknown_formats=True,
        # Without a retriever the library opens http and file references.
        retriever=_refuse,
        # The library's other regex engine backtracks.
        pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_SIZE),
    )


def list_errors(
    validator: jsonschema_rs.Validator, data: Any, *, first_only: bool = False
) -> list[SchemaError]:
    """Return at most MAX_ERRORS errors, none if the value matches.

    first_only: stop at the first error. Otherwise the library creates all errors, at about 10 us each.
    """
    if first_only:
        try:
            validator.validate(data)
        except jsonschema_rs.ValidationError as error:
            return [_describe(error)]
        return []
    found = validator.iter_errors(data)
    return [_describe(error) for error, _ in zip(found, range(MAX_ERRORS), strict=False)]


def _describe(error: jsonschema_rs.ValidationError) -> SchemaError:
    message = shorten(error.message, _MAX_TEXT)
    nearest = _nearest(error)
    if nearest is not None:
        message = f"{message} (nearest: {nearest['path'] or 'the whole value'}: {nearest['message']})"
    return {
        "path": json_pointer(error.instance_path),
        "message": message,
        "keyword": json_pointer(error.schema_path),
    }


def _nearest(error: jsonschema_rs.ValidationError) -> SchemaError | None:
    """Return the error deepest in the value, if all branches of an anyOf or oneOf failed."""
    branches = [errors[0] for errors in getattr(error.kind, "context", ()) if errors]
    if not branches:
        return None
    return _describe(max(branches, key=lambda inner: len(inner.instance_path)))


def json_pointer(path: Sequence[str | int]) -> str:
    """Return a path as a JSON Pointer; "" means the whole value."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
