"""What `import evald` offers is listed, exists, is documented, and nothing else is public by accident."""

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import evald


def _public_modules() -> list[ModuleType]:
    names = [
        module.name
        for module in pkgutil.iter_modules(evald.__path__, "evald.")
        if not module.name.rpartition(".")[2].startswith("_") and not module.ispkg
    ]
    return [evald, *map(importlib.import_module, names)]


WITH_ALL = [module for module in _public_modules() if hasattr(module, "__all__")]


def _exports() -> list[tuple[str, object]]:
    return [
        (f"{module.__name__}.{name}", getattr(module, name)) for module in WITH_ALL for name in module.__all__
    ]


@pytest.mark.parametrize("module", WITH_ALL, ids=lambda module: module.__name__)
def test_all_is_sorted_unique_and_importable(module: ModuleType) -> None:
    assert list(module.__all__) == sorted(set(module.__all__))
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing


@pytest.mark.parametrize("module", _public_modules(), ids=lambda module: module.__name__)
def test_every_module_says_what_it_is_for(module: ModuleType) -> None:
    assert (module.__doc__ or "").strip()


@pytest.mark.parametrize(("name", "export"), [pytest.param(*export, id=export[0]) for export in _exports()])
def test_every_export_is_documented(name: str, export: object) -> None:
    if not (inspect.isclass(export) or inspect.isroutine(export)):
        return
    doc = export.__dict__.get("__doc__") if inspect.isclass(export) else export.__doc__
    assert doc, f"{name} has no docstring"
    assert not doc.startswith(f"{getattr(export, '__name__', '')}("), f"{name} has a generated docstring"


@pytest.mark.parametrize(
    ("name", "export"),
    [pytest.param(name, export, id=name) for name, export in _exports() if inspect.isclass(export)],
)
def test_every_public_method_is_documented(name: str, export: type) -> None:
    undocumented = [
        member
        for member, value in vars(export).items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
        and not (getattr(value, "__doc__", None) or inspect.getdoc(getattr(export, member)))
    ]
    assert not undocumented, f"{name}: {', '.join(undocumented)}"


def test_the_package_knows_its_version() -> None:
    from importlib.metadata import version

    assert evald.__version__ == version("evald")
