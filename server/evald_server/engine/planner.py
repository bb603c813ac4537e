"""Caches plans by their specs, because callers repeat the same specs.

Protobuf writes the keys of a config in an order that differs by process, so the same specs have several spellings. A plan
is found by the bytes that came; bytes not seen before are parsed, and the plan is found by their deterministic spelling.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from evald.v1 import evaluation_service_pb2, evaluator_pb2

from .compiler import Compiler
from .plan import Criteria, Plan, PlanLimits, Violation
from .registry import Origin, Registry, State

# Estimated memory of a plan, per evaluator and per byte of its specs; see _size. If only the bytes of specs counted, many
# different tiny specs would use a hundred times the cache's limit.
_EVALUATOR_BYTES: Final = 8192
_BYTES_PER_BYTE: Final = 40

# Compiling a KiB takes up to 0.7 ms.
LARGE_BYTES: Final = 32 << 10

# Each process that calls adds at most one for each list of specs.
_MAX_SPELLINGS: Final = 16

Key: TypeAlias = tuple[tuple[bytes, ...], bytes, Criteria | None]


@dataclass(slots=True)
class _CachedPlan:
    """A plan, its estimated memory in bytes, and the bytes that callers wrote for it, oldest first."""

    plan: Plan
    size: int
    spellings: list[Key] = field(default_factory=list)


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
        self._kept: OrderedDict[Key, _CachedPlan] = OrderedDict()
        self._kept_bytes = 0
        self._by_spelling: dict[Key, Plan] = {}
        self._preparing = asyncio.Lock()
        registry.watch(self._drop_outdated)

    def plan(self, specs: tuple[bytes, ...], options: bytes = b"", criteria: Criteria | None = None) -> Plan:
        """Return the plan of serialised evald.v1.EvaluatorSpec messages and EvaluateOptions.

        Raises InvalidPlan with every violation.
        """
        key = (specs, options, criteria)
        plan = self._by_spelling.get(key)
        if plan is None:
            canonical = _canonical(key)
            kept = self._kept.get(canonical)
            plan = kept.plan if kept else self._compile(canonical)
            self._keep(key, canonical, plan)
        return plan

    async def prepare(self, specs: tuple[bytes, ...], options: bytes, criteria: Criteria | None) -> None:
        """Compile specs of more than LARGE_BYTES in a thread, so that `plan` finds them and other calls continue.

        Raises as `plan` does.
        """
        key = (specs, options, criteria)
        if sum(map(len, specs)) <= LARGE_BYTES or key in self._by_spelling:
            return
        # Shielded, because a thread continues when its caller is cancelled, and must hold the lock until it ends.
        await asyncio.shield(self._prepare(key))

    async def _prepare(self, key: Key) -> None:
        # One at a time, because each computing thread delays the event loop by up to 5 ms.
        async with self._preparing:
            if key in self._by_spelling:
                return
            generation = self.generation
            canonical = await asyncio.to_thread(_canonical, key)
            kept = self._kept.get(canonical)
            plan = kept.plan if kept else await asyncio.to_thread(self._compile, canonical)
            if generation == self.generation:
                self._keep(key, canonical, plan)

    def _compile(self, key: Key) -> Plan:
        return Compiler(self._registry, self._limits, fail_open=self._fail_open).plan(*key)

    def _keep(self, key: Key, canonical: Key, plan: Plan) -> None:
        """Cache a plan under a spelling. The newest one stays even if it exceeds the limit, so that `plan` finds what was
        prepared."""
        kept = self._kept.get(canonical)
        if kept is None:
            kept = self._kept[canonical] = _CachedPlan(plan, _size(canonical))
            self._kept_bytes += kept.size
        if key in self._by_spelling:
            return
        if len(kept.spellings) == _MAX_SPELLINGS:
            del self._by_spelling[kept.spellings.pop(0)]
        kept.spellings.append(key)
        self._by_spelling[key] = kept.plan
        while self._kept_bytes > self._limits.cache_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size
            for spelling in oldest.spellings:
                del self._by_spelling[spelling]

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
            self._by_spelling.clear()
            self._kept_bytes = 0


def _canonical(key: Key) -> Key:
    """Return the key that all spellings of the same specs and options share.

    Bytes that cannot be parsed stay as they are; the compiler reports them.
    """
    specs, options, criteria = key
    try:
        parsed = [evaluator_pb2.EvaluatorSpec.FromString(data) for data in specs]
        parsed_options = evaluation_service_pb2.EvaluateOptions.FromString(options)
    except DecodeError:
        return key
    return (
        tuple([spec.SerializeToString(deterministic=True) for spec in parsed]),
        parsed_options.SerializeToString(deterministic=True),
        criteria,
    )


def _size(key: Key) -> int:
    """Estimate the memory of a plan with its spellings: a compiled text search takes 2 KiB, a pattern 5 to 13 KiB, a JSON
    Schema 40 times its own size."""
    specs, options, criteria = key
    size = sum(map(len, specs)) + len(options) + sum(map(len, criteria or ()))
    return _EVALUATOR_BYTES * (len(specs) + 1) + _BYTES_PER_BYTE * size
