"""A judge's result says which models, which prompt and which card made it."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from evald.v1 import evaluator_pb2, result_pb2
from evald_server.calibration.card import FORMAT, card_id
from evald_server.config import JudgeSettings, Settings
from evald_server.judge.configured_models import build_models
from evald_server.monitoring import Telemetry

from ..rpc.live import Live, request, serving, spec
from .asking import KEY
from .test_service import GOOD
from .wire import wire

CRITERIA = {"criteria": "The answer is polite."}
PANEL = CRITERIA | {"judges": ["one", {"judge": "two", "model": "m2"}, {"judge": "one", "model": "m3"}]}


def card(path: Path, **more: Any) -> Path:
    """Write a card, as far as a server reads it."""
    data = {"format": FORMAT, "judge": {"models": [path.stem]}}
    path.write_text(json.dumps(data | {"id": card_id(data)} | more), encoding="utf-8")
    return path


def id_of(path: Path) -> str:
    found: str = json.loads(path.read_text(encoding="utf-8"))["id"]
    return found


def judges(base_url: str = "http://127.0.0.1:9/v1", **cards: Path) -> dict[str, Any]:
    """Two judges: m1 and others, and m2. cards: by model."""
    common = {"base_url": base_url, "attempts": 1, "cards": cards}
    return {
        "judge": "one",
        "judges": {
            "one": JudgeSettings.model_validate(common | {"model": "m1"}),
            "two": JudgeSettings.model_validate(common | {"model": "m2"}),
        },
    }


async def provenance(live: Live, config: dict[str, Any], **fields: Any) -> result_pb2.Provenance:
    (result,) = (await live.unary(request(spec("llm-judge", config, **fields)))).summary.results
    return result.provenance


async def test_the_same_question_has_one_digest_and_another_question_another_one() -> None:
    async with serving(**judges()) as live:
        asked = await provenance(live, CRITERIA)
        spelled = await provenance(live, CRITERIA | {"include_history": True, "samples": 1}, weight=2)
        named = await provenance(live, CRITERIA | {"judge": "one"})
        model = await provenance(live, CRITERIA | {"model": "m9"})
        others = [
            await provenance(live, config)
            for config in (
                {"criteria": "The answer is rude."},
                CRITERIA | {"prompt": "You are a strict judge."},
                CRITERIA | {"includeSystem": True},
                {"rubric": "The answer is polite."},
            )
        ]
        warmer = await provenance(live, CRITERIA | {"temperature": 1})
    assert asked == spelled
    assert list(asked.judge_models) == list(named.judge_models) == ["m1"]
    assert list(model.judge_models) == ["m9"]
    assert asked.prompt_sha256 == named.prompt_sha256 == model.prompt_sha256 == warmer.prompt_sha256
    assert len({one.config_sha256 for one in (asked, named, model, warmer, *others)}) == 8
    # That the judge sees system messages is no part of its instructions.
    assert len({one.prompt_sha256 for one in (asked, *others)}) == 4
    assert not asked.calibration_card


async def test_another_model_of_the_operator_is_another_provenance() -> None:
    found = []
    for model in ("m1", "m2"):
        async with serving(judge_model=model, judge_base_url="http://127.0.0.1:9/v1") as live:
            found.append(await provenance(live, CRITERIA))
    assert found[0].config_sha256 == found[1].config_sha256
    assert [list(one.judge_models) for one in found] == [["m1"], ["m2"]]


async def test_a_panel_names_each_model_once_and_in_order() -> None:
    async with serving(**judges()) as live:
        found = await provenance(live, PANEL | {"samples": 3})
        again = await provenance(
            live, CRITERIA | {"judges": ["two", {"judge": "one", "model": "m2"}, {"judge": "one"}]}
        )
    assert list(found.judge_models) == ["m1", "m2", "m3"]
    assert list(again.judge_models) == ["m2", "m1"]


async def test_a_combinator_names_the_models_of_its_children() -> None:
    def both(*configs: dict[str, Any]) -> evaluator_pb2.EvaluatorSpec:
        children: list[dict[str, Any]] = [{"type": "llm-judge", "config": config} for config in configs]
        return spec("any-of", {"evaluators": [*children, {"type": "is-json"}]})

    async with serving(**judges()) as live:
        first, second, third = [
            result.provenance
            for result in (
                await live.unary(
                    request(
                        both(CRITERIA, CRITERIA | {"judge": "two"}),
                        both(CRITERIA | {"prompt": "Be strict."}, CRITERIA | {"judge": "two"}),
                        both(),
                    )
                )
            ).summary.results
        ]
    assert list(first.judge_models) == list(second.judge_models) == ["m1", "m2"]
    assert first.config_sha256 != second.config_sha256
    assert not third.judge_models


async def test_a_cached_result_has_the_same() -> None:
    async with wire(GOOD) as server, serving(**judges(server.base_url)) as live:
        fresh, cached = [
            (await live.unary(request(spec("llm-judge", CRITERIA)))).summary.results[0] for _ in range(2)
        ]
    assert (fresh.cached, cached.cached) == (False, True)
    assert fresh.provenance == cached.provenance
    assert list(fresh.provenance.judge_models) == ["m1"]


async def test_who_is_not_asked_is_named_all_the_same() -> None:
    """So that all results of a judge have one provenance, whatever the answers are."""
    async with serving(**judges()) as live:
        asked = await provenance(live, CRITERIA)
        (empty,) = (await live.unary(request(spec("llm-judge", CRITERIA), answer="..."))).summary.results
    assert empty.verdict == result_pb2.VERDICT_FAILED
    assert empty.provenance == asked


async def test_the_card_is_that_of_the_spec_else_that_of_the_operator(tmp_path: Path) -> None:
    cards = {model: card(tmp_path / f"{model}.json") for model in ("m1", "m2")}
    async with serving(**judges(**cards)) as live:
        found = await provenance(live, CRITERIA)
        other = await provenance(live, CRITERIA | {"model": "m9"})
        named = await provenance(live, CRITERIA | {"calibration": "cal-7"})
        panel = await provenance(live, CRITERIA | {"judges": ["one", "two"]})
        partly = await provenance(live, PANEL)
    assert found.calibration_card == id_of(cards["m1"])
    assert named.calibration_card == "cal-7"
    assert named.config_sha256 == found.config_sha256, "to name a card makes no other judge"
    assert panel.calibration_card == f"{id_of(cards['m1'])}, {id_of(cards['m2'])}"
    # One card must not speak for judges that nobody has measured.
    assert not partly.calibration_card
    assert not other.calibration_card


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"\xff", "not UTF-8 text"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a calibration card; wanted a file written by `evald calibrate --card`"),
        (b'{"format": "evald.calibration/2"}', "not a calibration card"),
        (json.dumps({"format": FORMAT, "id": "cal-1"}).encode(), "the card was modified"),
    ],
    ids=["missing", "bytes", "broken", "deep", "list", "other format", "changed"],
)
def test_a_card_that_cannot_be_read_stops_the_start(
    content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "card.json"
    if content is not None:
        path.write_bytes(content)
    settings = Settings(**judges(m1=path))
    with pytest.raises(ValueError, match=words) as raised:
        build_models(settings, Telemetry().judges)
    assert str(raised.value).startswith("judges.one.cards.m1 ")


async def test_it_holds_no_key_and_no_text_of_a_prompt() -> None:
    async with serving(**judges(), judge_api_key=SecretStr(KEY)) as live:
        found = await provenance(live, {"criteria": KEY, "prompt": f"The key is {KEY}"})
    assert KEY not in str(found)
    assert {field.name for field, _ in found.ListFields()} == {
        "config_sha256",
        "judge_models",
        "prompt_sha256",
    }
