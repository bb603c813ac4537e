"""What is wrong with a config is refused before anything runs, with its place."""

import json
from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald_server.engine.registry import Origin, Registry
from evald_server.jsonschema.schema import Schema
from evald_server.judge.llm_judge import judge_definition

from .scripted import ScriptedModels, criteria

MODELS = ScriptedModels(criteria(True), strict=[criteria(True)], mild=[criteria(True)])
TEMPLATE = {"rubric": "r", "promptTemplate": "{rubric} {output}"}
ITEM = {"id": "a", "text": "t"}


@pytest.mark.parametrize(
    ("config", "path", "words"),
    [
        (
            {},
            "",
            "wanted one of: successCriteria or failureCriteria (or both), criteria, rubric, items",
        ),
        ({"model": "m"}, "", "no criteria to judge by"),
        ({"threshold": 0.5}, "", "no criteria to judge by"),
        ({"successCriteria": ""}, "/successCriteria", "at least 1 character"),
        ({"successCriteria": " \n"}, "/successCriteria", "blank"),
        ({"criteria": "c", "rubric": "r"}, "/rubric", "got both rubric and criteria"),
        ({"failureCriteria": "f", "items": [ITEM]}, "/items", "got both items and failureCriteria"),
        ({"criteria": "c", "passScore": 5}, "/passScore", "it applies to rubric"),
        ({"rubric": "r", "threshold": 0.5}, "/threshold", "it applies to criteria"),
        ({"criteria": "c", "failureCriteriaMode": "every_turn"}, "/failureCriteriaMode", "successCriteria"),
        ({"successCriteria": "s", "failureCriteriaMode": "always"}, "/failureCriteriaMode", "every_turn"),
        ({"criteria": "c", "promptTemplate": "{output}"}, "/promptTemplate", "it applies to rubric"),
        ({"rubric": "r", "promptTemplate": "{rubric} {outptu}"}, "/promptTemplate", "{outptu}"),
        ({"rubric": "r", "promptTemplate": "{rubric}"}, "/promptTemplate", "{output} is missing"),
        ({"rubric": "r", "promptTemplate": "{output}"}, "/promptTemplate", "{rubric} is missing"),
        (TEMPLATE | {"includeHistory": True}, "/includeHistory", "shows only the answer"),
        (TEMPLATE | {"includeExpected": True}, "/includeExpected", "shows only the answer"),
        ({"criteria": "c", "threshold": 1.1}, "/threshold", "less than or equal to 1"),
        ({"criteria": "c", "threshold": "0.5"}, "/threshold", "valid number"),
        ({"rubric": "r", "passScore": 11}, "/passScore", "less than or equal to 10"),
        ({"criteria": "c", "temperature": 2.1}, "/temperature", "less than or equal to 2"),
        ({"criteria": "c", "samples": 0}, "/samples", "greater than or equal to 1"),
        ({"criteria": "c", "samples": 21}, "/samples", "less than or equal to 20"),
        ({"criteria": "c", "samples": True}, "/samples", "valid integer"),
        ({"criteria": "c", "maxOutputTokens": 0}, "/maxOutputTokens", "greater than or equal to 1"),
        ({"criteria": "c", "prompts": "p"}, "/prompts", "unknown key"),
        ({"items": []}, "/items", "at least 1 item"),
        ({"items": [ITEM, ITEM]}, "/items/1/id", "'a', which is already the id of items[0]"),
        ({"items": [{"id": "a"}]}, "/items/0/text", "missing"),
        ({"items": [ITEM | {"weight": -1}]}, "/items/0/weight", "greater than or equal to 0"),
        ({"items": [ITEM | {"weight": 0}]}, "/items", "all weights are 0"),
        ({"items": [ITEM | {"weight": 1e308}]}, "/items/0/weight", "less than or equal to 1000000000"),
        ({"items": [ITEM | {"weight": 1e-300}]}, "/items/0/weight", "from 1e-9 to 1e9"),
        ({"items": [ITEM | {"operator": "x"}]}, "/items/0/operator", "unknown key"),
        (
            {"criteria": "c", "judge": "strikt"},
            "/judge",
            'no judge "strikt"; the judges are: strict, mild, default',
        ),
        ({"criteria": "c", "judges": ["strict", "x"]}, "/judges/1", 'no judge "x"'),
        ({"criteria": "c", "judges": []}, "/judges", "at least 1 item"),
        ({"criteria": "c", "judges": ["mild", {"judge": "mild"}]}, "/judges/1", "the same as judges[0]"),
        ({"criteria": "c", "judges": ["mild"], "judge": "mild"}, "/judge", "got both judge and judges"),
        ({"criteria": "c", "judges": ["mild"], "model": "m"}, "/model", "got both model and judges"),
        ({"criteria": "c", "judges": [{"provider": "p"}]}, "/judges/0/provider", "unknown key"),
    ],
)
def test_a_bad_config_is_refused_at_its_place(config: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        judge_definition(MODELS).compile(config)
    found = [problem.message for problem in refused.value.problems if problem.path == path]
    assert words in "; ".join(found)


def test_without_any_model_the_config_is_refused() -> None:
    with pytest.raises(InvalidConfig, match='no judge "default"; the judges are: none'):
        judge_definition(ScriptedModels()).compile({"criteria": "c"})


@pytest.mark.parametrize(
    "config",
    [
        {"success_criteria": "s", "failure_criteria_mode": "every_turn"},
        {"failureCriteria": "f"},
        {"criteria": "c", "threshold": 0.1, "prompt": "p", "includeSystem": True, "onlyFinal": True},
        {"rubric": "r", "passScore": 6.5, "maxOutputTokens": 500, "calibration": "card-1"},
        {"items": [ITEM], "judges": ["strict", {"judge": "mild", "temperature": 1}], "samples": 3},
        {"criteria": "c", "judges": ["strict", {"judge": "strict", "temperature": 1}]},
        TEMPLATE,
    ],
)
def test_a_good_config_is_taken_and_fits_the_schema_of_the_catalogue(config: dict[str, Any]) -> None:
    definition = judge_definition(MODELS)
    definition.compile(config)
    if "success_criteria" not in config:  # the schema knows one spelling
        assert not Schema(json.loads(definition.config_schema())).errors(config, "")


@pytest.mark.parametrize("name", ["llm-judge", "llm_judge", "llm-rubric", "llm_rubric", "quality"])
def test_the_type_has_the_names_that_other_systems_call_it_by(name: str) -> None:
    registry = Registry()
    registry.register(judge_definition(MODELS), Origin.BUILT_IN)
    assert registry.find(name).entry.definition.type == "llm-judge"
