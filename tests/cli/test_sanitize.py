"""Foreign text cannot steer a terminal or a CI system."""

import json
import unicodedata

import pytest

from evald_server.cli.sanitize import clean, to_json

HOSTILE = [
    pytest.param("\x1b[2J\x1b[31mred", id="escape sequence"),
    pytest.param("a\rb", id="carriage return"),
    pytest.param("\x9b31m", id="C1 control sequence"),
    pytest.param("\x07\x08\x7f", id="bell, backspace, delete"),
    pytest.param("\u202eevil\u2066", id="bidirectional override"),
    pytest.param("a\n::set-env name=x::y", id="workflow command"),
    pytest.param("\x1b]0;title\x07", id="window title"),
    pytest.param("\ud800", id="lone surrogate"),
    pytest.param("a\u2028b\u0085c", id="line separators"),
]


def _harmless(text: str) -> bool:
    return all(unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for sign in text)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_clean_text_is_one_line_without_controls(text: str) -> None:
    assert _harmless(clean(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_json_keeps_the_text_and_shows_no_control(text: str) -> None:
    written = to_json({"text": text, text: 1})
    assert _harmless(written)
    assert json.loads(written) == {"text": text, text: 1}


def test_indented_json_keeps_its_lines() -> None:
    assert to_json({"a": ["b\x1b"]}, indent=1) == '{\n "a": [\n  "b\\u001b"\n ]\n}'


def test_other_scripts_stay_readable() -> None:
    text = "Grüße, 世界, مرحبا 🙂"
    assert clean(text) == text
    assert text in to_json([text])


def test_a_long_text_is_cut_and_says_so() -> None:
    assert clean("x" * 50, 10) == "xxxxxxx..."
