"""Load evaluator plugins from Python files and installed packages.

A file provides every `Evaluator` subclass and every `define_evaluator(...)` at its top level, or exactly the items of
its `evaluators` list. A package provides the same, or its entry points in the group `evald.evaluators`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import json
import logging
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from evald.convert.evaluator_type import type_to_pb
from evald.evaluator import Evaluator, EvaluatorDefinition
from evald.foreign import raised_by
from evald_server.engine.registry import DuplicateType, Origin, Registry
from evald_server.jsonschema.check import NEWEST
from evald_server.jsonschema.keywords import unknown_keywords

_log = logging.getLogger("evald.plugins")

GROUP: Final = "evald.evaluators"


class PluginError(ValueError):
    """A plugin cannot be loaded. The message names the plugin and the remedy."""


def load_plugins(registry: Registry, names: Iterable[str], directory: Path | None = None) -> None:
    """Load plugins into the registry.

    names: paths of Python files, relative to `directory` (default: the current one), or names of installed
    packages. Raises PluginError.
    """
    for name in names:
        for definition in _loaded(name, directory or Path.cwd()):
            try:
                registry.register(definition, Origin.PLUGIN)
            except DuplicateType as problem:
                raise PluginError(f'Evaluator plugin "{name}": {problem}') from None


def _loaded(name: str, directory: Path) -> list[EvaluatorDefinition]:
    try:
        return _load(name, directory)
    except PluginError:
        raise
    except BaseException as problem:  # noqa: BLE001 - foreign code, which may call sys.exit()
        raised = raised_by(problem)
    error = PluginError(f'Evaluator plugin "{name}" raised an exception while it was loaded: {raised}')
    error.add_note(raised.trace)
    raise error


def _load(name: str, directory: Path) -> list[EvaluatorDefinition]:
    if name.endswith(".py") or "/" in name:
        return _definitions(name, _from_file(name, directory / Path(name).expanduser()))
    found = [point for point in entry_points(group=GROUP) if name in (point.name, _package(point))]
    if found:
        return [
            definition for point in found for definition in _definitions(name, _imported(name, point.load))
        ]
    return _definitions(name, _imported(name, lambda: importlib.import_module(name)))


def _package(point: Any) -> str:
    return point.dist.name if point.dist is not None else ""


def _from_file(name: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f'Evaluator plugin "{name}" not found. There is no file {name}; check the path.')
    unique = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"evald_plugin_{unique}", path)
    if spec is None or spec.loader is None:
        raise PluginError(f'Evaluator plugin "{name}" is not a Python file; wanted one ending in .py.')
    module = importlib.util.module_from_spec(spec)
    # Before its execution, because dataclasses and pydantic look up their module by name.
    sys.modules[spec.name] = module
    loader = spec.loader
    _imported(name, lambda: loader.exec_module(module))
    return module


def _imported(name: str, load: Any) -> Any:
    try:
        return load()
    except ModuleNotFoundError as problem:
        if problem.name and problem.name.split(".")[0] == name.split(".", maxsplit=1)[0]:
            raise PluginError(
                f'Evaluator plugin "{name}" not found. Install the package, or give the path of a '
                f"Python file, for example ./{name}.py."
            ) from None
        raise PluginError(
            f'Evaluator plugin "{name}" needs the module "{problem.name}", which is not '
            "installed; install it."
        ) from None


def _definitions(name: str, loaded: Any) -> list[EvaluatorDefinition]:
    if isinstance(loaded, ModuleType):
        listed = getattr(loaded, "evaluators", None)
        candidates = list(listed) if listed is not None else _defined_in(loaded)
    else:
        candidates = (
            list(loaded) if isinstance(loaded, list | tuple) and not _is_evaluator(loaded) else [loaded]
        )
    if not candidates or not all(_is_evaluator(candidate) for candidate in candidates):
        raise PluginError(
            f'Evaluator plugin "{name}" has an invalid export. '
            f"Use define_evaluator() or a subclass of Evaluator to create the export."
        )
    try:
        return [
            _checked(candidate if isinstance(candidate, EvaluatorDefinition) else candidate.definition())
            for candidate in candidates
        ]
    except (ValueError, AttributeError, TypeError) as problem:
        raise PluginError(f'Evaluator plugin "{name}" has an invalid export: {problem}') from None


def _checked(definition: EvaluatorDefinition) -> EvaluatorDefinition:
    # A definition that cannot be converted would break the catalogue for every caller.
    type_to_pb(definition)
    schema = json.loads(definition.config_schema())
    for place, problem in unknown_keywords(schema, NEWEST) if isinstance(schema, dict) else ():
        _log.warning("evaluator %s: config schema: %s: %s", definition.type, place, problem)
    return definition


def _defined_in(module: ModuleType) -> list[Any]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, EvaluatorDefinition)
        or (
            inspect.isclass(value)
            and issubclass(value, Evaluator)
            and value.__module__ == module.__name__
            and hasattr(value, "type")
        )
    ]


def _is_evaluator(value: Any) -> bool:
    return isinstance(value, EvaluatorDefinition) or (inspect.isclass(value) and issubclass(value, Evaluator))
