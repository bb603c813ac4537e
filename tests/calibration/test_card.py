"""A card says what it is about, and its id changes with anything that it says."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from evald_server.calibration.calibration import JudgeUnderTest
from evald_server.calibration.card import CalibrationCard, card_id
from evald_server.calibration.cases import cases_digest

from .scripted import ScriptedJudge, card_of, case, cases, pairs

DOCS = Path(__file__).parents[2] / "docs/calibration.md"


def _card(**options: Any) -> CalibrationCard:
    moment = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    return card_of(ScriptedJudge(0.8, 0.8), [*cases(5, 5), *pairs(3, 3)], now=lambda: moment, **options)


def test_equal_calibrations_have_equal_cards() -> None:
    assert _card() == _card()
    assert re.fullmatch(r"cal-[0-9a-f]{16}", _card().id)


def test_a_card_survives_its_file() -> None:
    card = _card()
    read = CalibrationCard.model_validate_json(json.dumps(card.to_dict()))
    assert read == card
    assert card_id(json.loads(json.dumps(card.to_dict()))) == card.id


def test_a_card_that_was_changed_has_another_id() -> None:
    data = _card().to_dict()
    data["agreement"]["accuracy"]["value"] = 1.0
    assert card_id(data) != data["id"]


def test_a_judge_that_names_its_card_is_the_judge_that_got_it() -> None:
    config = {"successCriteria": "It is right.", "model": "m"}
    plain = JudgeUnderTest("llm-judge", "1.0.0", {"type": "llm_judge", "config": config}).describe([])
    named = {"type": "llm-judge", "name": "mine", "config": {**config, "calibration": "cal-0"}}
    assert JudgeUnderTest("llm-judge", "1.0.0", named).describe([]) == plain
    other = JudgeUnderTest("llm-judge", "1.0.1", {"type": "llm-judge", "config": config}).describe([])
    assert other.digest != plain.digest


def test_the_digest_of_cases_knows_every_change_but_not_the_order() -> None:
    some = [case("one"), case("two", "fail"), case("three", "a")]
    assert cases_digest(some) == cases_digest(list(reversed(some)))
    changed = [
        [case("one"), case("two", "fail")],
        [case("one"), case("two", "pass"), case("three", "a")],
        [case("one", criteria="be kind"), case("two", "fail"), case("three", "a")],
        [case("one"), case("two", "fail"), case("three", "b")],
    ]
    assert len({cases_digest(one) for one in (some, *changed)}) == 5


def _models(model: type[BaseModel]) -> list[type[BaseModel]]:
    found = [model]
    for field in model.model_fields.values():
        for inner in [field.annotation, *getattr(field.annotation, "__args__", ())]:
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found += [one for one in _models(inner) if one not in found]
    return found


@pytest.mark.parametrize("model", _models(CalibrationCard), ids=lambda model: model.__name__)
def test_every_key_says_what_it_means(model: type[BaseModel]) -> None:
    assert model.__doc__
    assert all(field.description for field in model.model_fields.values())


def test_the_documents_have_the_keys_of_the_card() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("\n## The card\n")[2].partition("\n## ")[0]
    written = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert written == [field.alias for field in CalibrationCard.model_fields.values()]
