"""What docs/judge.md says holds."""

import json
import re
from pathlib import Path

from evald_server.judge.config import LlmJudge
from evald_server.judge.grader_modes import GraderMode
from evald_server.judge.llm_judge import judge_definition
from evald_server.judge.rubric_modes import CriteriaMode, ItemsMode, PointsMode, ScoreMode

from .scripted import ScriptedModels, criteria

PAGE = Path(__file__).parents[2].joinpath("docs/judge.md").read_text("utf-8")


def test_its_specs_compile_and_show_every_way_of_asking() -> None:
    models = ScriptedModels(**{name: [criteria(True)] for name in ("default", "strict", "mild", "third")})
    forms = set()
    for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL):
        spec = json.loads(block)
        assert spec.keys() == {"type", "config"}
        judge_definition(models).compile(spec["config"])
        forms.add(type(LlmJudge.from_config(spec["config"]).mode))
    assert forms == {CriteriaMode, ScoreMode, PointsMode, ItemsMode, GraderMode}


def test_it_names_every_key_of_the_config() -> None:
    keys = {field.alias for field in LlmJudge.model_fields.values()}
    assert {key for key in keys if not re.search(rf"\b{key}\b", PAGE)} == set()
