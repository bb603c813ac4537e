"""Pages that show what a server has: evaluator types, instances of remote evaluators, and calibration cards."""

import json
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

from evald_server.calibration.attack_suite import attack_suite
from evald_server.calibration.calibration import calibrate
from evald_server.calibration.card import CalibrationCard, CardDataset
from evald_server.testing import async_server

from ..calibration.scripted import SUBJECT, ScriptedJudge, cases, pairs
from ..remote.scripted import Worker
from ..suites.reports.hostile import COMBINED
from .exchange import send
from .test_console_read import read


async def card() -> CalibrationCard:
    """The card of a judge that is wrong now and then, with all that a card can have."""
    judge = ScriptedJudge(0.9, 0.8, first=0.1, gullible={"direct": 0.5}, paranoid=0.2)
    labelled = [*cases(20, 20), *pairs(5, 5), *attack_suite()]
    return await calibrate(SUBJECT, judge, labelled, repeats=2, datasets=[dataset("support talks")])


def of_text(one: CalibrationCard, text: str) -> CalibrationCard:
    """The same figures, of a judge and with data of this name."""
    judge = one.judge.model_copy(update={"type": text, "version": text})
    return one.model_copy(update={"judge": judge, "data": [dataset(text)]}).with_id()


def dataset(name: str) -> CardDataset:
    return CardDataset(name=name, cases=50, left_out=2, digest="sha256:0")


def put(folder: Path, *cards: CalibrationCard) -> None:
    (folder / "calibrations").mkdir()
    for number, one in enumerate(cards):
        (folder / "calibrations" / f"{number}.json").write_text(json.dumps(one.to_dict()), encoding="utf-8")


async def test_a_calibration_card_is_shown_with_its_bounds(tmp_path: Path) -> None:
    one = await card()
    put(tmp_path, one)
    (tmp_path / "calibrations" / "broken.json").write_text("{", encoding="utf-8")
    judges = {"strict": {"base_url": "http://127.0.0.1:9/v1", "model": "small", "models": ["small", "large"]}}
    async with async_server(web="127.0.0.1:0", data_dir=tmp_path, judges=judges) as server:
        page = read(await send(server.web_address or "", "GET", "/console/judge"))
        listed = await send(server.web_address or "", "GET", "/api/calibrations")
    assert page.seen.count("table") == 3  # the judges, the card's figures, its confusion
    for figure in ("Agreement with people", "Order flips", "Same verdict every time", "Attacks that succeed"):
        assert figure in page.text
    assert page.text.count("not calibrated") == 2
    assert one.id in page.text
    assert one.agreement is not None
    assert f"{one.agreement.accuracy.low:.1%}".replace("%", " %") in page.text.replace("\u202f", " ")
    assert [found["id"] for found in listed.json] == [one.id]


async def test_an_evaluator_type_is_shown_with_its_facts() -> None:
    async with async_server(web="127.0.0.1:0") as server:
        found = await send(server.web_address or "", "GET", "/console/evaluators/regex")
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(?:<code>)?(.*?)(?:</code>)?</dd>", found.body.decode()))
    assert facts["Type"] == "regex"
    assert facts["Kind"] == "Assertion"
    assert {"Version", "Deterministic"} <= set(facts)


async def test_an_instance_of_a_remote_evaluator_is_shown() -> None:
    async with (
        async_server(web="127.0.0.1:0") as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        worker = await Worker(channel, "acme.word", instance_id="w-1", name="words", version="1.2").start()
        try:
            page = read(await send(server.web_address or "", "GET", "/console/remotes"))
        finally:
            await worker.stop()
    for text in ("words", "1.2", "acme.word", "active"):
        assert text in page.text


async def test_10_texts_of_remotes_and_cards_stay_texts(tmp_path: Path) -> None:
    """The pages have the elements that they have with harmless texts."""
    hostile = await elements(tmp_path / "hostile", COMBINED[::5])
    harmless = await elements(
        tmp_path / "harmless", [f"text {number}" for number in range(len(COMBINED[::5]))]
    )
    assert hostile == harmless


async def elements(folder: Path, texts: Sequence[str]) -> list[list[str]]:
    """Those of the pages, with a card and an instance for each text."""
    folder.mkdir()
    one = await card()
    put(folder, *[of_text(one, text) for text in texts])
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(async_server(web="127.0.0.1:0", data_dir=folder))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
        for number, text in enumerate(texts):
            worker = Worker(channel, "acme.word", instance_id=f"w-{number}", name=text, version=text[:20])
            stack.push_async_callback((await worker.start()).stop)
        paths = ("/console/judge", "/console/remotes")
        return [read(await send(server.web_address or "", "GET", path)).seen for path in paths]
