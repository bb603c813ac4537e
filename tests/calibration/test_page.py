"""The page shows the card, loads nothing, and runs nothing that stands in it."""

import asyncio
import re
from html.parser import HTMLParser

import pytest

from evald_server.calibration.asks import Answer, Ask
from evald_server.calibration.attacks import suite
from evald_server.calibration.calibration import Subject, calibrate
from evald_server.calibration.card import Card, Data
from evald_server.calibration.gates import Limits
from evald_server.calibration.page import page_of

from .scripted import ScriptedJudge, card_of, case, cases, pairs

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
VOID = {"meta", "br", "line", "circle", "rect"}


class Page(HTMLParser):
    """Elements with their attributes; complains about any that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def _full(text: str = "x") -> Card:
    async def judge(ask: Ask) -> Answer:
        found = await scripted(ask)
        return found._replace(models=(text,), score=0.9 if found.passed else 0.2, latency_ms=12.0)

    scripted = ScriptedJudge(0.7, 0.7, errors=0.03, gullible={"style": 0.5}, paranoid=0.3, cost_usd=0.001)
    some = [*cases(20, 20), *pairs(10, 10), case(text, source=text), *suite()]
    spec = {"type": "llm-judge", "config": {"successCriteria": text}}
    return asyncio.run(
        calibrate(
            Subject(text, text, spec),
            judge,
            some,
            repeats=2,
            data=[Data(name=text, cases=1, left_out=2, digest=text)],
            limits=Limits(min_accuracy=0.99, min_kappa=0.5, max_cost=0.1, max_errors=1.0),
        )
    )


def test_the_page_has_every_part_of_a_full_card() -> None:
    page = Page(page_of(_full()))
    headings = [
        word
        for word in page.words
        if word in {"Agreement with people", "Attacks", "Gates", "Faults and time"}
    ]
    assert len(headings) >= 4
    assert sum(tag == "svg" for tag, _ in page.elements) == 4


@pytest.mark.parametrize(
    "card",
    [
        pytest.param(card_of(ScriptedJudge(), []), id="nothing asked"),
        pytest.param(card_of(ScriptedJudge(errors=1.0), cases(3, 3)), id="only errors"),
        pytest.param(card_of(ScriptedJudge(), suite()), id="attacks alone"),
        pytest.param(card_of(ScriptedJudge(0.0, 0.0), cases(3, 3)), id="always wrong"),
    ],
)
def test_a_page_of_little_is_a_page(card: Card) -> None:
    page = Page(page_of(card))
    assert card.id in "".join(page.words)
    assert "None" not in "".join(page.words)
    assert not re.search(r"\bnan\b", page_of(card))


def test_texts_of_others_are_text() -> None:
    text = page_of(_full(EVIL))
    page = Page(text)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "iframe", "object", "link"}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert EVIL in page.words or any(EVIL in word for word in page.words)


def test_the_page_loads_nothing() -> None:
    text = page_of(_full())
    page = Page(text)
    assert not [attributes for _, attributes in page.elements if {"src", "href"} & attributes.keys()]
    assert "url(" not in text
    assert "@import" not in text
    policies = [
        attributes["content"] or ""
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]


def test_every_mark_of_a_plot_lies_within_it() -> None:
    text = page_of(_full())
    for plot in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        size = re.search(r'viewBox="0 0 (\S+) (\S+)"', plot)
        assert size
        width, height = float(size[1]), float(size[2])
        for name, value in re.findall(r'\b(cx|cy|x1|x2|y1|y2)="([^"]+)"', plot):
            assert 0 <= float(value) <= (width if "x" in name else height), (name, value)
