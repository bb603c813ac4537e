"""Converts suites of other tools to the data of an evald suite file, or refuses them with a reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..documents import DataPath, Document, InvalidDocument, read_document
from . import agentv, openai_graders, promptfoo
from .node import Converted

__all__ = ["Converted", "as_document", "convert", "convert_jsonl"]

_FORMATS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Document], Converted]], ...]] = (
    (openai_graders.is_it, openai_graders.convert),
    (promptfoo.is_it, promptfoo.convert),
    (agentv.is_it, agentv.convert),
)


def convert(document: Document) -> Converted | None:
    """Convert a document in the format of another tool; return None for any other document.

    Raises InvalidDocument for a feature without a counterpart in evald.
    """
    for is_it, convert_it in _FORMATS:
        if is_it(document.data):
            try:
                return _once_each(convert_it(document))
            except RecursionError:
                raise InvalidDocument(document.file, 1, "nested too deep") from None
    return None


def convert_jsonl(path: Path) -> Converted | None:
    """Convert an AgentV JSONL file, which has a YAML file of the same name beside it; return None for any other file."""
    for suffix in (".yaml", ".yml"):
        beside = path.with_suffix(suffix)
        if beside.is_file() and agentv.is_it(read_document(beside).data):
            return _once_each(agentv.convert_jsonl(path))
    return None


def _once_each(converted: Converted) -> Converted:
    """Return a suite without repeated warnings: what all cases share is converted for each of them."""
    return converted._replace(warnings=list(dict.fromkeys(converted.warnings)))


def as_document(converted: Converted, file: str) -> Document:
    """Return a converted suite as an evald document. The place of a value is that of its evaluator, or of its case."""
    lines: dict[DataPath, int] = {(): 1, **{path: node.line for path, node in converted.places.items()}}
    files = {
        path: node.document.file for path, node in converted.places.items() if node.document.file != file
    }
    return Document(converted.suite, lines, file, files)
