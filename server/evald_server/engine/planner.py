"""Caches plans by the bytes of their specs, because callers repeat the same specs."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias

from evald.v1 import evaluator_pb2

from .compiler import Compiler
from .plan import Criteria, Plan, PlanLimits, Violation
from .registry import Origin, Registry, State

# Estimated memory of a plan, per evaluator and per byte of its specs; see _size. If only the bytes of specs counted, many
# different tiny specs would use a hundred times the cache's limit.
_EVALUATOR_BYTES: Final = 8192
_BYTES_PER_BYTE: Final = 40

# Compiling a KiB takes up to 0.7 ms.
LARGE_BYTES: Final = 32 << 10

Key: TypeAlias = tuple[tuple[bytes, ...], bytes, Criteria | None]


class Planner:
    """A compiler of specs with a cache of plans. Not thread-safe.

    generation: changes when earlier plans become outdated.
    """

    def __init__(
        self,
        registry: Registry,
        limits: PlanLimits = PlanLimits(),  # noqa: B008 - immutable
        *,
        fail_open: bool = False,
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._fail_open = fail_open
        self.generation = registry.plans_revision
        self._kept: OrderedDict[Key, Plan] = OrderedDict()
        self._kept_bytes = 0
        self._preparing = asyncio.Lock()
        registry.watch(self._drop_outdated)

    def plan(self, specs: tuple[bytes, ...], options: bytes = b"", criteria: Criteria | None = None) -> Plan:
        """Return the plan of serialised evald.v1.EvaluatorSpec messages and EvaluateOptions.

        Raises InvalidPlan with every violation.
        """
        key = (specs, options, criteria)
        plan = self._kept.get(key)
        if plan is None:
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
            if generation == self.generation:
                self._keep(key, plan)

    def _compile(self, key: Key) -> Plan:
        return Compiler(self._registry, self._limits, fail_open=self._fail_open).plan(*key)

    def _keep(self, key: Key, plan: Plan) -> None:
        """Cache a plan. The newest one stays even if it exceeds the limit, so that `plan` finds what was prepared."""
        if key not in self._kept:
            self._kept_bytes += _size(key)
        self._kept[key] = plan
        while self._kept_bytes > self._limits.cache_bytes and len(self._kept) > 1:
            oldest, _ = self._kept.popitem(last=False)
            self._kept_bytes -= _size(oldest)

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

    def is_offered(self, plan: Plan) -> bool:
        """Return whether instances offer all remote evaluators of a plan now."""
        return all(
            entry is not None and entry.state is State.ACTIVE
            for entry in (
                self._registry.get(planned.definition.type)
                for planned in plan.evaluators
                if planned.origin is Origin.REMOTE
            )
        )

    def _drop_outdated(self) -> None:
        """Clear the cache if a change of the registry has made its plans outdated."""
        if self.generation != self._registry.plans_revision:
            self.generation = self._registry.plans_revision
            self._kept.clear()
            self._kept_bytes = 0


def _size(key: Key) -> int:
    """Estimate the memory of a plan with its key: a compiled text search takes 2 KiB, a pattern 5 to 13 KiB, a JSON
    Schema 40 times its own size."""
    specs, options, criteria = key
    size = sum(map(len, specs)) + len(options) + sum(map(len, criteria or ()))
    return _EVALUATOR_BYTES * (len(specs) + 1) + _BYTES_PER_BYTE * size
