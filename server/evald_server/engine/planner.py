"""Caches plans by their specs, because callers repeat the same specs.

Protobuf writes the keys of a config in an order that differs by process, so the same specs have several spellings. A plan
is found by the bytes that came; bytes not seen before are parsed, and the plan is found by their deterministic spelling.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from google.protobuf.message import DecodeError

from evald.v1 import evaluation_service_pb2, evaluator_pb2

from .compiler import Compiler
from .plan import InvalidPlan, Plan, PlanLimits, Violation
from .registry import Origin, Registry, State

# Estimated memory of a plan, per evaluator and per byte of its specs; see _size. If only the bytes of specs counted, many
# different tiny specs would use a hundred times the cache's limit.
_EVALUATOR_BYTES: Final = 8192
_BYTES_PER_BYTE: Final = 40

# Compiling a KiB takes up to 0.7 ms.
LARGE_BYTES: Final = 32 << 10

Key: TypeAlias = tuple[tuple[bytes, ...], bytes]
"""The serialised specs and options."""


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
        self._plans: OrderedDict[Key, Plan] = OrderedDict()  # by spelling, oldest first
        self._bytes = 0
        self._canonical: WeakValueDictionary[Key, Plan] = WeakValueDictionary()
        self._one_thread = asyncio.Lock()
        registry.watch(self._drop_outdated)

    def plan(self, specs: tuple[bytes, ...], options: bytes = b"") -> Plan:
        """Return the plan of serialised evald.v1.EvaluatorSpec messages and EvaluateOptions.

        Raises InvalidPlan with every violation.
        """
        key = (specs, options)
        plan = self._plans.get(key)
        if plan is None:
            canonical, plan = self._find_or_compile(key)
            self._keep(key, canonical, plan)
        return plan

    async def prepare(self, specs: tuple[bytes, ...], options: bytes) -> None:
        """Compile specs of more than LARGE_BYTES in a thread, so that `plan` finds them and other calls continue.

        Raises as `plan` does.
        """
        key = (specs, options)
        if sum(map(len, specs)) <= LARGE_BYTES:
            return
        # One at a time, because each computing thread delays the event loop by up to 5 ms.
        async with self._one_thread:
            if key not in self._plans:
                generation = self.generation
                canonical, plan = await asyncio.to_thread(self._find_or_compile, key)
                if generation == self.generation:
                    self._keep(key, canonical, plan)

    async def violations(self, specs: Sequence[evaluator_pb2.EvaluatorSpec]) -> list[Violation]:
        """Return every violation of the specs; an empty list if they are valid."""
        try:
            async with self._one_thread:
                await asyncio.to_thread(self._compiler().check, specs)
        except InvalidPlan as problem:
            return problem.violations
        return []

    def is_offered(self, plan: Plan) -> bool:
        """Return whether instances offer all remote evaluators of a plan now."""
        remote = [one for one in plan.evaluators if one.origin is Origin.REMOTE]
        entries = [self._registry.get(evaluator.definition.type) for evaluator in remote]
        return all(entry is not None and entry.state is State.ACTIVE for entry in entries)

    def _compiler(self) -> Compiler:
        return Compiler(self._registry, self._limits, fail_open=self._fail_open)

    def _find_or_compile(self, key: Key) -> tuple[Key, Plan]:
        canonical = _canonical(key)
        plan = self._canonical.get(canonical)
        return canonical, self._compiler().plan(*canonical) if plan is None else plan

    def _keep(self, key: Key, canonical: Key, plan: Plan) -> None:
        """Cache a plan under a spelling. The newest one stays even if it exceeds the limit, so that `plan` finds what was
        prepared."""
        if key in self._plans:
            return
        self._plans[key] = self._canonical[canonical] = plan
        self._bytes += _size(key)
        while self._bytes > self._limits.cache_bytes and len(self._plans) > 1:
            oldest, _ = self._plans.popitem(last=False)
            self._bytes -= _size(oldest)

    def _drop_outdated(self) -> None:
        """Clear the cache if a change of the registry has made its plans outdated."""
        if self.generation != self._registry.plans_revision:
            self.generation = self._registry.plans_revision
            self._plans.clear()
            self._canonical.clear()
            self._bytes = 0


def _canonical(key: Key) -> Key:
    """Return the key that all spellings of the same specs and options share.

    Bytes that cannot be parsed stay as they are; the compiler reports them.
    """
    specs, options = key
    try:
        parsed = [evaluator_pb2.EvaluatorSpec.FromString(data) for data in specs]
        parsed_options = evaluation_service_pb2.EvaluateOptions.FromString(options)
    except DecodeError:
        return key
    return (
        tuple([spec.SerializeToString(deterministic=True) for spec in parsed]),
        parsed_options.SerializeToString(deterministic=True),
    )


def _size(key: Key) -> int:
    """Estimate the memory of a plan and its key: a compiled text search takes 2 KiB, a pattern 5 to 13 KiB, a JSON Schema 40
    times its own size."""
    specs, options = key
    size = sum(map(len, specs)) + len(options)
    return _EVALUATOR_BYTES * (len(specs) + 1) + _BYTES_PER_BYTE * size
