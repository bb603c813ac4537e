"""evald gives the answers that other evaluation systems give, or says why not.

Every case is replayed through a plan and the engine. Where evald decides otherwise on purpose, the
adapter's DIFFERENCES say so, and what evald does instead is replayed.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from .adapters import (
    adk,
    agentv,
    autoevals,
    deepeval,
    evalstudio,
    gogrid,
    inspect_ai,
    json_schema_suite,
    langchain,
    langevals,
    nemo,
    promptfoo,
    pydantic_evals,
    strands,
)
from .not_covered import NOT_COVERED
from .replay import Case, Difference, Vector, misfits

_ADAPTERS: Mapping[str, tuple[Callable[[Vector], Case], Mapping[str, Difference]]] = {
    system: (module.adapt, module.DIFFERENCES)
    for system, module in {
        "agentv": agentv,
        "agentv-seed": agentv,
        "autoevals": autoevals,
        "deepeval": deepeval,
        "evalstudio": evalstudio,
        "evalstudio-spec": evalstudio,
        "gogrid": gogrid,
        "google-adk": adk,
        "inspect_ai": inspect_ai,
        "json-schema-test-suite": json_schema_suite,
        "langchain-agentevals": langchain,
        "langchain-openevals": langchain,
        "langevals": langevals,
        "nemo-evaluator": nemo,
        "promptfoo": promptfoo,
        "pydantic-evals": pydantic_evals,
        "strands-evals": strands,
    }.items()
}

_VECTORS: list[Vector] = [
    json.loads(line) for line in Path(__file__).with_name("vectors.jsonl").read_text("utf-8").splitlines()
]

# Every known case of these systems is in the file or in the table of what is not covered.
_KNOWN = 406


def _difference(vector: Vector) -> Difference | None:
    return _ADAPTERS[vector["system"]][1].get(vector["id"])


def _ids(vectors: list[Vector]) -> list[str]:
    return [vector["id"] for vector in vectors]


_SAME = [vector for vector in _VECTORS if _difference(vector) is None]
_OTHERWISE = [vector for vector in _VECTORS if _difference(vector) is not None]


@pytest.mark.parametrize("vector", _SAME, ids=_ids(_SAME))
def test_a_case_comes_out_as_in_the_other_system(vector: Vector) -> None:
    case = _ADAPTERS[vector["system"]][0](vector)
    wrong = misfits(case.expect, case.act())
    assert not wrong, wrong


@pytest.mark.parametrize("vector", _OTHERWISE, ids=_ids(_OTHERWISE))
def test_a_case_comes_out_otherwise_as_documented(vector: Vector) -> None:
    case, difference = _ADAPTERS[vector["system"]][0](vector), _difference(vector)
    assert difference is not None
    assert difference.reason
    assert difference.rule
    outcome = case.act()
    wrong, gone = misfits(difference.instead, outcome), not misfits(case.expect, outcome)
    assert not wrong, wrong
    assert not gone, "no difference any more: take it out of DIFFERENCES"


def test_no_case_is_dropped_in_silence() -> None:
    left_out = [identifier for ids in NOT_COVERED.values() for identifier in ids]
    everything = [*_ids(_VECTORS), *left_out]
    assert len(everything) == len(set(everything)) == _KNOWN


def test_every_difference_is_about_a_case() -> None:
    listed = {identifier for _, differences in _ADAPTERS.values() for identifier in differences}
    assert listed == set(_ids(_OTHERWISE))
