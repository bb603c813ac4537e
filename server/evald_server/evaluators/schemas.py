"""JSON Schemas that come from callers: compiled once, checked safely.

Safe means: nothing is ever fetched, patterns run in linear time, and a schema
that could take long on the answer at hand is checked in a process that can be
killed.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import jsonschema_rs

from evald.evaluator import ConfigProblem, InvalidConfig

from . import schema_check
from .killable import KillablePool
from .schema_check import DRAFTS, NEWEST, Error, compile_schema, list_errors
from .schema_cost import Pattern, estimate, pattern_size
from .values import pointer, printable, shown

MAX_BYTES: Final = 64 * 1024
MAX_SUBSCHEMAS: Final = 1000

# States of all patterns together. They compile at up to 1 us a state, in the event loop.
_MAX_PATTERN_STATES: Final = 50_000

WORKER_SECONDS: Final = 0.25

# Evaluations of one value beyond which a schema is not run in the event loop: failing, each may cost 10 us.
_MAX_BRANCHES: Final = 1000

# Work of the schema times bytes of the answer. An evaluation takes 13 ns, as does a byte in one state of a
# pattern, and a value has two bytes at least: 7 ms at worst, on ordinary answers a hundred times less.
_INLINE_WORK: Final = 1_000_000

# Branches times values of the answer up to which all errors are listed, not only the first: 10 us each.
_LISTING_WORK: Final = 5_000

_WORKER_PROGRAM: Final = (sys.executable, "-P", str(Path(schema_check.__file__)))


class Schema:
    """A compiled schema.

    inline_bytes: longest answer, in characters, that may be checked right in
    the event loop; 0 when none may.
    """

    __slots__ = ("_branches", "_draft", "_text", "inline_bytes", "is_valid", "validator")

    def __init__(self, schema: dict[str, Any] | bool, where: str = "/schema") -> None:
        """where: the place of the schema in the config. Raises InvalidConfig, which names the place."""
        self._text = _checked_text(schema, where)
        self._draft = _draft(schema, where)
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        cost = estimate(schema)
        if cost.subschemas > MAX_SUBSCHEMAS:
            raise _invalid(where, f"{cost.subschemas} subschemas; at most {MAX_SUBSCHEMAS} are allowed")
        states = _states(cost.patterns, where)
        self._branches = cost.branches
        suspicious = cost.ambiguous or cost.branches > _MAX_BRANCHES
        self.inline_bytes = 0 if suspicious else _INLINE_WORK // (cost.work + states)
        # Other spellings of a draft's name are ours to understand, the library knows one.
        plain = {key: value for key, value in schema.items() if key != "$schema"}
        try:
            self.validator = compile_schema(plain, self._draft)
        except jsonschema_rs.ValidationError as problem:
            raise _explain(problem, where) from None
        except ValueError as problem:
            raise _invalid(where, printable(str(problem))) from None
        self.is_valid = self.validator.is_valid

    def errors(self, data: Any, text: str) -> list[Error]:
        """What is wrong with data that is not valid. Only the first error when listing all takes long."""
        values = 1 + text.count(",") + text.count(":")
        return list_errors(self.validator, data, first_only=self._branches * values > _LISTING_WORK)

    async def errors_in_worker(self, text: str) -> list[Error] | None:
        """What is wrong with the JSON text, empty when nothing is, found out in a process of its own.

        None: a string holds half of a surrogate pair, so that it cannot be checked. Raises killable.TimedOut, Busy or Died.
        """
        task = {"schema": self._text, "draft": self._draft, "text": text}
        found: list[Error] | None = await _workers().run(task, worker_seconds(text))
        return found


def worker_seconds(text: str) -> float:
    """Processor time that a worker gets. The second term, 1.6 s for 16 MiB, is for reading the text."""
    return WORKER_SECONDS + len(text) * 1e-7


_pools: "WeakKeyDictionary[asyncio.AbstractEventLoop, KillablePool]" = WeakKeyDictionary()


def _workers() -> KillablePool:
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = KillablePool(_WORKER_PROGRAM)
    return pool


async def close_workers() -> None:
    """End the worker processes of this event loop. They start again when they are needed."""
    pool = _pools.pop(asyncio.get_running_loop(), None)
    if pool is not None:
        await pool.aclose()


def _invalid(where: str, message: str) -> InvalidConfig:
    return InvalidConfig([ConfigProblem(where, message)])


def _checked_text(schema: dict[str, Any] | bool, where: str) -> str:
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    except RecursionError:
        raise _invalid(where, "nested too deep") from None
    except (TypeError, ValueError) as problem:
        raise _invalid(where, f"not JSON: {printable(str(problem))}") from None
    if size > MAX_BYTES:
        raise _invalid(where, f"{size} bytes; at most {MAX_BYTES} are allowed")
    return text


def _draft(schema: dict[str, Any] | bool, where: str) -> str:
    named = schema.get("$schema", NEWEST) if isinstance(schema, dict) else NEWEST
    if isinstance(named, str):
        bare = named.rstrip("#").partition("://")[2]
        for draft in DRAFTS:
            if draft.partition("://")[2] == bare:
                return draft
    raise _invalid(
        f"{where}/$schema",
        f"unknown draft {shown(named)}; wanted one of {', '.join(DRAFTS)}, or none for the last of these",
    )


def _states(patterns: list[Pattern], where: str) -> int:
    states = 0
    for pattern in patterns:
        states += pattern_size(pattern.text)
        if states > _MAX_PATTERN_STATES:
            raise _invalid(
                f"{where}{pattern.place}",
                f"the patterns have about {states} states up to here, counted repetitions written out; "
                f"at most {_MAX_PATTERN_STATES} are allowed. Ask for lengths with minLength and maxLength instead",
            )
    return states


def _explain(problem: jsonschema_rs.ValidationError, where: str) -> InvalidConfig:
    place = f"{where}{pointer(problem.instance_path)}"
    kind = problem.kind.name
    if kind == "$ref":
        return _invalid(
            where,
            f'a "$ref" cannot be resolved: {_cut(problem.message)}. References to other documents are '
            'never followed; put what they point to under "$defs"',
        )
    if kind == "format" and problem.message.endswith('is not a "regex"'):
        return _invalid(
            place,
            f"{_cut(problem.message)}, or not one that can be searched in linear time: look-around, "
            "back-references and programs over 1 MiB are refused",
        )
    return _invalid(place, f"not a JSON Schema: {_cut(problem.message)}")


def _cut(message: str) -> str:
    message = printable(message)
    return message if len(message) <= 300 else message[:299] + "…"
