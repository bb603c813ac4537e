"""Evaluators on the command line: `-e TYPE:KEY=VALUE,...`, or a JSON, TOML or YAML file of specs."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evald.strict_json import TooLarge, parse_json, parse_json_at

from .exit_codes import usage_error

_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_NEXT_PAIR = re.compile(rf",\s*(?={_KEY.pattern}=)")
_NAMED = re.compile(r"(?:([^=:]+)=)?([^=:]+)")
_EXAMPLE = "for example -e regex:pattern=BK-[0-9]+ or -e 'ref=regex:pattern=BK-[0-9]+,mustMatch=true'"


class SpecSet(NamedTuple):
    """Specs and options of a call, as plain data.

    specs: type names, or mappings with `type` and optionally `name`, `config` and other keys of a spec.
    options: options of the call from the files; empty for the server's defaults.
    places: file or option of each spec, for messages.
    """

    specs: list[Any]
    options: dict[str, Any]
    places: list[str]


def load_specs(files: Iterable[str], expressions: Iterable[str]) -> SpecSet:
    """Load all specs, files first. Raises CommandError for a spec that cannot be read or parsed."""
    found = SpecSet([], {}, [])
    for path in files:
        loaded = load_file(Path(path))
        found.specs.extend(loaded.specs)
        found.options.update(loaded.options)
        found.places.extend(loaded.places)
    for expression in expressions:
        found.specs.append(parse_expression(expression))
        found.places.append(f"-e {expression!r}")
    return found


def parse_expression(text: str) -> dict[str, Any]:
    """Parse `[NAME=]TYPE[:KEY=VALUE[,KEY=VALUE]...]` into a spec.

    A value is parsed as JSON; a value that is not JSON is a string. JSON quotes force a string. A comma ends a
    value only before another KEY=, so "text=Hello, world" needs no quotes. Dots in a key make nested mappings;
    numbers between dots make lists. The key `reasoning` is the spec's, not the config's.
    """
    head, colon, pairs = text.partition(":")
    match = _NAMED.fullmatch(head.strip())
    if not match:
        raise usage_error(f"-e {text!r}: got {head!r}, wanted TYPE:KEY=VALUE", _EXAMPLE)
    spec: dict[str, Any] = {"type": match[2].strip()}
    if match[1]:
        spec["name"] = match[1].strip()
    if colon and pairs.strip():
        config = _parse_pairs(pairs, text)
        if "reasoning" in config:  # no evaluator's config has this key
            spec["reasoning"] = config.pop("reasoning")
        if config:
            spec["config"] = _lists(config)
    return spec


def _parse_pairs(pairs: str, whole: str) -> dict[str, Any]:
    config: dict[str, Any] = {}
    position = 0
    while position < len(pairs):
        while position < len(pairs) and pairs[position].isspace():
            position += 1
        key = _KEY.match(pairs, position)
        if not key or not pairs.startswith("=", key.end()):
            raise usage_error(f"-e {whole!r}: got {pairs[position:]!r}, wanted KEY=VALUE", _EXAMPLE)
        try:
            value, position = _parse_value(pairs, key.end() + 1)
        except (ValueError, TooLarge) as problem:
            raise usage_error(f"-e {whole!r}: {key[0]}: {problem}") from None
        _put(config, key[0], value, whole)
    return config


def _parse_value(pairs: str, start: int) -> tuple[Any, int]:
    if pairs[start : start + 1] in ('"', "[", "{"):
        try:
            value, end = parse_json_at(pairs, start)
        except json.JSONDecodeError:
            pass  # a string such as the pattern [0-9]+
        else:
            if end == len(pairs):
                return value, end
            following = _NEXT_PAIR.match(pairs, end)
            if following:
                return value, following.end()
    following = _NEXT_PAIR.search(pairs, start)
    end = following.start() if following else len(pairs)
    text = pairs[start:end]
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    return value, following.end() if following else end


def _put(config: dict[str, Any], key: str, value: Any, whole: str) -> None:
    *path, last = key.split(".")
    target = config
    for part in path:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise usage_error(f"-e {whole!r}: {key!r} is below {part!r}, which already has a value")
    if last in target:
        raise usage_error(f"-e {whole!r}: {key!r} is given twice")
    target[last] = value


def _lists(data: Any) -> Any:
    """Convert mappings with the keys 0, 1, ... to lists."""
    if not isinstance(data, dict):
        return data
    nested = {key: _lists(value) for key, value in data.items()}
    if nested and sorted(nested) == sorted(str(index) for index in range(len(nested))):
        return [nested[str(index)] for index in range(len(nested))]
    return nested


def load_file(path: Path) -> SpecSet:
    """Load a file: a list of specs, one spec, or a table with `evaluators` and optionally `options`."""
    data = _read(path)
    options: Any = {}
    specs: Any = data
    if isinstance(data, Mapping):
        options = data.get("options", {})
        specs = data.get("evaluators", [data] if "type" in data else None)
    if not isinstance(specs, list) or not isinstance(options, Mapping):
        raise usage_error(
            f"{path}: wanted a list of evaluators, or a table with the list under 'evaluators'",
            'for example {"evaluators": [{"type": "regex", "config": {"pattern": "BK-[0-9]+"}}]}',
        )
    for index, spec in enumerate(specs):
        if not isinstance(spec, str | Mapping):
            raise usage_error(
                f"{path}: evaluators[{index}]: wanted a type name or a table with a 'type', "
                f"got {json.dumps(spec)[:80]}"
            )
    return SpecSet(
        list(specs), dict(options), [f"{path}: evaluators[{index}]" for index in range(len(specs))]
    )


def _read(path: Path) -> Any:
    # Imported here: -e does not need these modules.
    from ..suites.documents import InvalidDocument, parse_json_text, read_document, read_text

    try:
        if path.suffix != ".toml":
            as_yaml = path.suffix in (".yaml", ".yml")
            return read_document(path).data if as_yaml else parse_json_text(read_text(path), str(path))
        return tomllib.loads(read_text(path))
    except InvalidDocument as problem:
        raise usage_error(str(problem)) from None
    except tomllib.TOMLDecodeError as problem:
        raise usage_error(f"{path}: not valid TOML: {problem}") from None
