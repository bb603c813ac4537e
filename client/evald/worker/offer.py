"""The evaluators that a worker offers, and their description for the server."""

import uuid
from collections.abc import Sequence
from importlib.metadata import version as package_version
from typing import Any, Final, TypeAlias

from ..convert.evaluator_type import type_to_pb
from ..evaluator import Evaluator, EvaluatorDefinition
from ..fields import positive, text
from ..foreign import guarded
from ..plugin.v1 import task_pb2

CONTRACT: Final = "evald.plugin.v1"

AnyEvaluator: TypeAlias = type[Evaluator] | EvaluatorDefinition


class OfferedEvaluators:
    """The evaluators of one worker process.

    name, version: name and version of the plugin; by default the type and version of its first evaluator.
    evaluators: definitions by type.
    max_concurrency: maximum concurrent tasks, 1 or more.
    instance_id: new for every process, so that a server can distinguish a restart from a reconnect.

    Raises ValueError and TypeError for invalid arguments.
    """

    def __init__(
        self,
        evaluators: Sequence[AnyEvaluator],
        *,
        name: str | None = None,
        version: str | None = None,
        max_concurrency: int,
    ) -> None:
        self.max_concurrency = positive(max_concurrency, "max_concurrency", largest=(1 << 31) - 1)
        definitions = [_definition(evaluator) for evaluator in evaluators]
        if not definitions:
            raise ValueError("no evaluators; wanted at least one, for example connect(my_evaluator)")
        self.evaluators: dict[str, EvaluatorDefinition] = {}
        for definition in definitions:
            if definition.type in self.evaluators:
                raise ValueError(f'type "{definition.type}" is offered twice; give each its own type')
            self.evaluators[definition.type] = guarded(definition)
        self.name = text(name or definitions[0].type, "name")
        self.version = text(version or definitions[0].version, "version")
        self.instance_id = str(uuid.uuid4())

    @property
    def can_cancel(self) -> bool:
        """True if cancelling always stops a task. The thread of a plain function cannot be stopped."""
        return all(definition.is_async or definition.inline for definition in self.evaluators.values())

    def info(self, *capabilities: "task_pb2.Capability") -> task_pb2.PluginInfo:
        """Return the description of the plugin. capabilities: of the kind of worker; CANCEL is added if supported."""
        if self.can_cancel:
            capabilities = (*capabilities, task_pb2.CAPABILITY_CANCEL)
        return task_pb2.PluginInfo(
            name=self.name,
            version=self.version,
            contract_versions=[CONTRACT],
            evaluator_types=map(type_to_pb, self.evaluators.values()),
            max_concurrency=self.max_concurrency,
            capabilities=capabilities,
            sdk=f"python/{package_version('evald')}",
        )

    def __str__(self) -> str:
        return ", ".join(f"{found.type} {found.version}" for found in self.evaluators.values())


def _definition(evaluator: Any) -> EvaluatorDefinition:
    if isinstance(evaluator, EvaluatorDefinition):
        return evaluator
    if isinstance(evaluator, type) and issubclass(evaluator, Evaluator):
        return evaluator.definition()
    hint = '; decorate the function with @evald.assertion("acme.my-check")' if callable(evaluator) else ""
    raise TypeError(
        f"got {getattr(evaluator, '__name__', repr(evaluator)[:60])}, wanted a subclass of Evaluator or "
        f"an evaluator made with @assertion, @metric or define_evaluator{hint}"
    )
