"""Caches plans by the bytes of their specs, because callers repeat the same specs."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from evald.v1 import evaluator_pb2

from .compiler import Compiler
from .plan import Criteria, Limits, Plan, Violation
from .registry import Registry

# Measured, see _size. Without these, many different tiny specs would use a hundred times the cache's limit.
_EVALUATOR_BYTES: Final = 8192
_BYTES_PER_BYTE: Final = 40

# Compiling a KiB takes up to 0.7 ms.
LARGE_BYTES: Final = 32 << 10

Key: TypeAlias = tuple[tuple[bytes, ...], bytes, Criteria | None]


class _Prepared(NamedTuple):
    key: Key
    plan: Plan


class Planner:
    """A compiler of specs with a cache of plans. Not thread-safe.

    generation: changes when earlier plans become outdated.
    """

    def __init__(
        self,
        registry: Registry,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        *,
        fail_open: bool = False,
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._fail_open = fail_open
        self.generation = 0
        self._kept: OrderedDict[Key, Plan] = OrderedDict()
        self._kept_bytes = 0
        self._preparing = asyncio.Lock()
        # The last plan that is too large for the cache, until it is used. One is enough: a call uses its plan in the
        # same millisecond, before the next one can be compiled.
        self._prepared: _Prepared | None = None
        registry.subscribe(self._forget)

    def plan(self, specs: tuple[bytes, ...], options: bytes = b"", criteria: Criteria | None = None) -> Plan:
        """Return the plan of serialised evald.v1.EvaluatorSpec messages and EvaluateOptions.

        Raises InvalidPlan with every violation.
        """
        key = (specs, options, criteria)
        plan = self._kept.get(key)
        if plan is None and self._prepared is not None and self._prepared.key == key:
            plan, self._prepared = self._prepared.plan, None
        elif plan is None:
            plan = self._compile(key)
            self._keep(key, plan)
        return plan

    async def prepare(self, specs: tuple[bytes, ...], options: bytes, criteria: Criteria | None) -> None:
        """Compile specs of more than LARGE_BYTES in a thread, so that `plan` finds them and other calls continue.

        Raises as `plan` does.
        """
        key = (specs, options, criteria)
        if sum(map(len, specs)) <= LARGE_BYTES or key in self._kept:
            return
        # Shielded, because a thread continues when its caller is cancelled, and must hold the lock until it ends.
        await asyncio.shield(self._prepare(key))

    async def _prepare(self, key: Key) -> None:
        # One at a time, because each computing thread delays the event loop by up to 5 ms.
        async with self._preparing:
            if key in self._kept:
                return
            generation = self.generation
            plan = await asyncio.to_thread(self._compile, key)
            if generation == self.generation and not self._keep(key, plan):
                self._prepared = _Prepared(key, plan)

    def _compile(self, key: Key) -> Plan:
        return Compiler(self._registry, self._limits, fail_open=self._fail_open).plan(*key)

    def _keep(self, key: Key, plan: Plan) -> bool:
        """Cache a plan. Returns False if it is too large."""
        size = _size(key)
        if size > self._limits.cache_bytes:
            return False
        if key not in self._kept:
            self._kept_bytes += size
        self._kept[key] = plan
        while self._kept_bytes > self._limits.cache_bytes:
            oldest, _ = self._kept.popitem(last=False)
            self._kept_bytes -= _size(oldest)
        return True

    async def violations(self, specs: Sequence[evaluator_pb2.EvaluatorSpec]) -> list[Violation]:
        """Return every violation of the specs; an empty list if they are valid."""
        compiler = Compiler(self._registry, self._limits, fail_open=self._fail_open)
        size = sum(spec.ByteSize() for spec in specs)
        if compiler.fits(size):
            if size <= LARGE_BYTES:
                compiler.compile_all(specs)
            else:
                await asyncio.shield(self._compile_all(compiler, specs))
        return compiler.violations

    async def _compile_all(self, compiler: Compiler, specs: Sequence[evaluator_pb2.EvaluatorSpec]) -> None:
        async with self._preparing:
            await asyncio.to_thread(compiler.compile_all, specs)

    def _forget(self) -> None:
        self.generation += 1
        self._kept.clear()
        self._prepared = None
        self._kept_bytes = 0


def _size(key: Key) -> int:
    """Estimate the memory of a plan with its key: a compiled text search takes 2 KiB, a pattern 5 to 13 KiB, a JSON
    Schema 40 times its own size."""
    specs, options, criteria = key
    size = sum(map(len, specs)) + len(options) + sum(map(len, criteria or ()))
    return _EVALUATOR_BYTES * (len(specs) + 1) + _BYTES_PER_BYTE * size
