"""A compiled JSON Schema, and the limits for schemas from callers."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import jsonschema_rs

from evald.evaluator import ConfigProblem, InvalidConfig
from evald_server.untrusted import encodable, shorten

from .check import DRAFTS, NEWEST, SchemaError, compile_schema, json_pointer, list_errors
from .cost import estimate, pattern_size, patterns, subschemas
from .keywords import (
    accepts_everything,
    literal_problem,
    names_parts,
    unknown_keywords,
    unwrapped,
    with_nulls,
)
from .pool import KillablePool

MAX_BYTES: Final = 64 * 1024
MAX_SUBSCHEMAS: Final = 1000

# States of all patterns together. Compiling them holds the event loop for up to 1 us per state.
_MAX_PATTERN_STATES: Final = 50_000

WORKER_SECONDS: Final = 0.25

# Work of the schema times bytes of the answer. An evaluation takes 13 ns, as does a byte in one state of a pattern,
# and a value has at least two bytes: 7 ms at worst, a hundred times less for ordinary answers.
_INLINE_WORK: Final = 1_000_000

# Evaluations per value times values of the answer, up to which all errors are listed: 10 us each.
_LISTING_WORK: Final = 5_000

_WORKER_PROGRAM: Final = (sys.executable, "-P", str(Path(__file__).with_name("worker.py")))


class Schema:
    """A compiled schema.

    inline_bytes: longest answer, in characters, that may be checked on the event loop; 0 if the cost of the schema
    has no bound. unknown: the place of each unknown keyword, and what to write instead. vacuous: whether it accepts
    everything. root_type: its keyword `type`.
    """

    __slots__ = (
        *("_draft", "_evaluations", "_text", "inline_bytes", "is_valid", "root_type", "unknown", "vacuous"),
        "validator",
    )

    def __init__(self, schema: dict[str, Any] | bool, where: str = "/schema") -> None:
        """where: place of the schema in the config. Raises InvalidConfig, which names the place."""
        self._text = _checked_text(schema, where)
        self._draft = _draft(schema, where)
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        _check_size(schema, where)
        if '"nullable":' in self._text:
            schema = with_nulls(json.loads(self._text), where)
            self._text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        self.unknown = unknown_keywords(schema, self._draft)
        self.vacuous = accepts_everything(schema, schema, self._draft)
        self.root_type = schema.get("type")
        cost = estimate(schema)
        self._evaluations = cost.evaluations if cost else _LISTING_WORK + 1
        self.inline_bytes = _INLINE_WORK // cost.work if cost else 0
        # The library knows one spelling of a draft's name; `_draft` accepts several.
        plain = {key: value for key, value in schema.items() if key != "$schema"}
        try:
            self.validator = compile_schema(plain, self._draft)
        except jsonschema_rs.ValidationError as problem:
            raise _explain(problem, where) from None
        except ValueError as problem:
            raise InvalidConfig.at(where, encodable(str(problem))) from None
        self.is_valid = self.validator.is_valid

    @classmethod
    def of_spec(cls, schema: Any) -> "Schema":
        """Return the schema of a spec. Raises InvalidConfig also for unknown keywords, and if it checks nothing."""
        schema, place = unwrapped(schema)
        where = f"/schema{place}"
        compiled = cls(schema, where)
        if compiled.unknown:
            raise InvalidConfig([ConfigProblem(f"{where}{at}", problem) for at, problem in compiled.unknown])
        # Schemas such as {"properties": {"a": {}}} are written, and pass with a warning.
        if compiled.vacuous and not (isinstance(schema, dict) and names_parts(schema)):
            raise InvalidConfig.at(
                where,
                "accepts every JSON, so that nothing would be checked; write is-json if any JSON may pass, or a schema "
                'with type, required, properties or the like, such as {"type": "object"}',
            )
        return compiled

    def errors(self, data: Any, text: str) -> list[SchemaError]:
        """Return the errors of invalid data; only the first one if listing all would take long."""
        values = 1 + text.count(",") + text.count(":")
        return list_errors(self.validator, data, first_only=self._evaluations * values > _LISTING_WORK)

    async def errors_in_worker(self, text: str) -> list[SchemaError] | None:
        """Check a JSON text in a worker process.

        Returns the first error, if any; None if a string has a lone surrogate, which cannot be checked.
        Raises TaskTimeout, PoolBusy or WorkerDied.
        """
        task = {"schema": self._text, "draft": self._draft, "text": text}
        found: list[SchemaError] | None = await _workers().run(task, worker_seconds(text))
        return found


def worker_seconds(text: str) -> float:
    """Return the CPU time limit of a worker. The second term, 1.6 s for 16 MiB, is for parsing the text."""
    return WORKER_SECONDS + len(text) * 1e-7


_pools: "WeakKeyDictionary[asyncio.AbstractEventLoop, KillablePool]" = WeakKeyDictionary()


def _workers() -> KillablePool:
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = KillablePool(_WORKER_PROGRAM)
    return pool


async def close_workers() -> None:
    """End the worker processes of this event loop. They start again when needed."""
    pool = _pools.pop(asyncio.get_running_loop(), None)
    if pool is not None:
        await pool.aclose()


def _checked_text(schema: dict[str, Any] | bool, where: str) -> str:
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    except RecursionError:
        raise InvalidConfig.at(where, "nested too deep") from None
    except (TypeError, ValueError) as problem:
        raise InvalidConfig.at(where, f"not JSON: {encodable(str(problem))}") from None
    if size > MAX_BYTES:
        raise InvalidConfig.at(where, f"got {size} bytes, wanted at most {MAX_BYTES}")
    return text


# The dialect of OpenAPI 3.1: draft 2020-12 with annotations of its own.
_OPENAPI: Final = "spec.openapis.org/oas/3.1/dialect/base"


def _draft(schema: dict[str, Any] | bool, where: str) -> str:
    named = schema.get("$schema", NEWEST) if isinstance(schema, dict) else NEWEST
    if isinstance(named, str):
        bare = named.rstrip("#").partition("://")[2]
        if bare == _OPENAPI:
            return NEWEST
        for draft in DRAFTS:
            if draft.partition("://")[2] == bare:
                return draft
    raise InvalidConfig.at(
        f"{where}/$schema",
        f"unknown draft {_cut(json.dumps(named))}; wanted one of {', '.join(DRAFTS)}, or no $schema for "
        "the last of these",
    )


def _check_size(schema: Mapping[str, Any], where: str) -> None:
    """Raise InvalidConfig if the schema would take long to compile."""
    count = states = 0
    for place, subschema in subschemas(schema):
        count += 1
        for pattern in patterns(place, subschema):
            if problem := literal_problem(pattern.text):
                raise InvalidConfig.at(f"{where}{pattern.place}", problem)
            states += pattern_size(pattern.text)
            if states > _MAX_PATTERN_STATES:
                raise InvalidConfig.at(
                    f"{where}{pattern.place}",
                    f"up to here the patterns have about {states} states (x{{100}} counts as 100), wanted at most "
                    f"{_MAX_PATTERN_STATES}; use minLength and maxLength for lengths",
                )
    if count > MAX_SUBSCHEMAS:
        raise InvalidConfig.at(where, f"got {count} subschemas, wanted at most {MAX_SUBSCHEMAS}")


def _explain(problem: jsonschema_rs.ValidationError, where: str) -> InvalidConfig:
    place = f"{where}{json_pointer(problem.instance_path)}"
    kind = problem.kind.name
    if kind == "$ref":
        return InvalidConfig.at(
            where,
            f'a "$ref" cannot be resolved: {_cut(problem.message)}. References to other documents are never '
            'followed; copy the referenced schema to "$defs"',
        )
    if kind == "format" and problem.message.endswith('is not a "regex"'):
        return InvalidConfig.at(
            place,
            f"{_cut(problem.message)}, or cannot be searched in linear time: look-around, back-references and "
            "programs over 1 MiB are not supported",
        )
    hint = ""
    if place.endswith(("/exclusiveMinimum", "/exclusiveMaximum")) and isinstance(problem.instance, bool):
        bound = place.rpartition("/exclusive")[2].lower()
        hint = f"; drafts before 6 and OpenAPI 3.0 write true beside {bound}, here the number itself is the bound"
    return InvalidConfig.at(place, f"not a JSON Schema: {_cut(problem.message)}{hint}")


def _cut(message: str) -> str:
    return shorten(encodable(message), 300)
