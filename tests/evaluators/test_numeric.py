"""Numbers: which ones a text holds, and when two are close enough."""

from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald.result import Verdict, reaches
from evald_server.evaluators import numeric
from evald_server.evaluators.numeric import Numeric, find_numbers

from .contexts import answered, context, run


def numbers_in(text: str) -> list[float]:
    """The readable numbers of a text, in order."""
    return [found.value for found in find_numbers(text) if found.value is not None]


PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("28 + 32 = 60%", [28, 32, 60]),
        ("It costs $1,234.50.", [1234.5]),
        ("12,345,678.9, I think", [12345678.9]),
        ("1,2,3 and [1, 2, 3]", [1, 2, 3]),
        ("1234,567", []),
        ("EUR-5, USD -5, BK-12, GPT-4", [-5, 12, 4]),
        ("4.2 E1 or 4.2 e-1", []),
        ("42 (million) or five (5) million", [42_000_000, 5_000_000]),
        ("-5 and \u22127 and +4", [-5, -7, 4]),
        ("x=-5", [-5]),
        ("-$5 or $-5", [-5, -5]),
        ("€ 5kg 3rd", [5]),
        (".5 and 0.5", [0.5, 0.5]),
        ("pi is 3.14.", [3.14]),
        ("1e3, 2.5E-1, 1e999", [1000, 0.25]),
        ("BK-12345 on 2024-01-15", [12345]),
        ("(5)-3, 10%-20%", [5, 3]),
        ("GPT4 v1.2 1.2.3", []),
        ("2 or 3 x 10^8", [2]),
        ("- 5 apples\n- 6 pears", [5, 6]),
        ("_42_ and **43**, foo_5", [42, 43]),
        ("2025 100 items", [2025, 100]),
        ("between 5 and 10, not 5-10", [5, 10]),
        ("5M users, 3K of them in 4 GB", [5_000_000, 3000, 4]),
        ("ราคา5บาท", [5]),
        ("", []),
    ],
)
def test_the_numbers_of_a_text(text: str, found: list[float]) -> None:
    assert list(numbers_in(text)) == found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\u00bd", 0.5),
        ("2\u00bd", 2.5),
        ("-2 \u00bd cups", -2.5),
        ("2\u202f\u00bd", 2.5),
        ("1,000\u00bd%", 1000.5),
        ("12\u00bd%", 12.5),
        ("1.5\u00bd", None),
        ("\u00bd\u00bd", None),
        ("\u00bd5", None),
        ("1\u20442", None),
        ("\uff12\uff10", 20),
        ("\uff0d\uff11\uff0c\uff12\uff13\uff14\uff0e\uff15\uff05", -1234.5),
        ("\u0663\u066b\u0661\u0664", 3.14),
        ("\u096f\u0967", 91),
        ("\U0001d7d7", 9),
        ("1\u00a0234\u202f567.5 kr", 1234567.5),
        ("10\u2074", None),
        ("10\u207b\u00b3", None),
        ("10\u207a\u00b2", None),
        ("\ufe635", -5),
        ("1\ufe525", 1.5),
        ("\u0661\u066c\u0662\u0663\u0664", 1234),
        ("3\u00d710\u2078", None),
        ("3 x 10^8", None),
        ("5\u2460", None),
        ("1e1234", None),
        # Groups and decimal signs of other countries.
        ("₹1,00,000", 100_000),
        ("₹1,00,00", None),
        ("1'234.50", 1234.5),
        ("1\u2019234\u2019567", 1_234_567),
        ("1_000", 1000),
        ("1_00", None),
        ("1.234.567,89 €", None),
        ("1.234,5", None),
        ("1,5", None),
        ("0,123", None),
        ("1,2345", None),
        ("1 000 000", None),
        ("12 345", None),
        ("1\u00a0234,5", None),
        ("1\u00a023", None),
        ("1{,}234", None),
        ("42\u200b5", None),
        # Other notations.
        ("0x1F", None),
        ("0xFF", None),
        ("0b101", None),
        ("10^3", None),
        ("10 ^ 3", None),
        ("10^{3}", None),
        ("10^n", None),
        ("10**3", None),
        ("x^3", None),
        ("2\u00d73", None),
        ("3 \\times 10^8", None),
        ("\\frac{1}{2}", None),
        ("\\sqrt{5}", None),
        ("\u221a5", None),
        ("1/2", None),
        ("1 / 2", None),
        ("2 1/2", None),
        ("1e5x", None),
        ("1e5.5", None),
        ("3rd", None),
        ("5e", None),
        ("2\u03c0", None),
        ("5\u2030", None),
        # Dates, times, versions, addresses, ranges.
        ("12:30", None),
        ("1h30", None),
        ("5 pm", None),
        ("5pm", None),
        ("2026-01-31", None),
        ("31/1/2026", None),
        ("2025年1月", None),
        ("1.2.3", None),
        ("192.168.0.1", None),
        ("5-10", None),
        ("5 \u2013 10", None),
        ("5..10", None),
        ("$5-$10", None),
        ("5kg - 10kg", None),
        # Multipliers.
        ("1.5M", 1_500_000),
        ("4.1 million", 4_100_000),
        ("$1.5bn", 1_500_000_000),
        ("1.5\u00a0Million", 1_500_000),
        ("2-thousand", 2000),
        ("3 million 200 thousand", None),
        ("3 million 200,000", None),
        ("5m", None),
        ("5m\u00b2", 5),
        ("1.5 Mio.", None),
        ("2 lakh", None),
        ("5 млн", None),
        ("$1.5Million", 1_500_000),
        ("**1.5** million", 1_500_000),
        ("5만 원", None),
        ("5억", None),
        ("5조각", 5),
        ("5 ล้านบาท", None),
        ("5พัน", None),
        ("5 लाख", None),
        ("5个亿", None),
        ("5个百分点", 5),
        ("50多万", None),
        ("3個半", None),
        ("3分の1", None),
        ("4割2分", None),
        ("1億2,000万", None),
        ("1億 2000万", None),
        ("5京", None),
        ("一・五", None),
        ("5 milyon", None),
        ("5 Tsd. €", None),
        ("5 and a half", None),
        ("5 hundredths", None),
        ("5 squared", None),
        ("10 to the power of 6", None),
        ("10<sup>6</sup>", None),
        ("5 times 10", None),
        ("2 h 30 min", None),
        ("5 ft 11", None),
        ("42&nbsp;000", None),
        ("**42**,000", None),
        ("1\u3000000", None),
        ("5 ‰", None),
        # Signs.
        ("minus 5", None),
        ("マイナス 5", None),
        ("영하 5도", None),
        ("零下5度", None),
        ("ติดลบ 5", None),
        ("\u20135", None),
        ("\u00b15", None),
        ("-USD 5", None),
        ("-R$5", None),
        ("-₹5", -5),
        ("答案是-5", -5),
        ("负5", None),
        ("Nr.5", None),
        ("1e999", None),
        ("9" * 400, None),
        ("三", 3),
        ("答案: 三。", 3),
        ("三十五", 35),
        ("十", 10),
        ("一百零五", 105),
        ("一万二千三百", 12_300),
        ("二〇二五", 2025),
        ("两千", 2000),
        ("3万円", 30_000),
        ("三萬", 30_000),
        ("万", 10_000),
        ("百万", 1_000_000),
        ("零", 0),
        ("二〇", 20),
        ("一二三", 123),
        ("一千零十", 1010),
        ("一亿二百万", 102_000_000),
        ("一万零十", 10_010),
        ("一万百", 10_100),
        ("二亿", 200_000_000),
        ("一兆", 10**12),
        ("0万円", 0),
        ("0億5000万", 50_000_000),
        ("0.5万", 5000),
        ("1.5億", 150_000_000),
        ("3 百万", 3_000_000),
        ("1億2000万", 120_000_000),
        ("三四", None),
        ("一百五", None),
        ("百五", None),
        ("一万五", None),
        ("一万二万", None),
        ("二三十", None),
        ("1.5\u00bd万", None),
        ("零万", None),
        ("〇百", None),
        ("三百零万", None),
        ("三亿万", None),
        ("二十五十", None),
        ("5一", None),
        ("万万", None),
        ("答案是三", None),
        ("答案: 是三", None),
        ("一般", None),
        ("一定是 5", 5),
        ("价格是5元", 5),
    ],
)
def test_a_number_is_read_whole_in_whatever_script_or_not_at_all(text: str, value: float | None) -> None:
    """What cannot be read whole proves nothing, turned round or not."""
    [found] = find_numbers(text)
    assert found.value == value or (value is not None and found.value == pytest.approx(value))
    for extract in ("first", "last", "any"):
        for expected in (2, 3, value):
            if expected is None:
                continue
            config = {"expected": expected, "extract": extract, "tolerance": 1e-9}
            result = run(Numeric, config, answered(text))
            passes = value is not None and abs(value - expected) < 1e-8
            assert (result.verdict, result.unproven) == (PASSED if passes else FAILED, value is None), result
            assert not result.unproven or "cannot be read" in result.reason


def test_any_number_that_is_right_is_enough_beside_one_that_cannot_be_read() -> None:
    text = "2 or 10\u2074"
    assert run(Numeric, {"expected": 2, "extract": "any"}, answered(text)).verdict is PASSED
    assert run(Numeric, {"expected": 3, "extract": "any"}, answered(text)).unproven
    assert run(Numeric, {"expected": 2, "extract": "last"}, answered(text)).unproven
    assert run(Numeric, {"expected": 2, "extract": "first"}, answered(text)).verdict is PASSED


@pytest.mark.parametrize(
    ("config", "answer", "verdict", "value"),
    [
        pytest.param({"expected": 60}, "28 + 32 = 60%", PASSED, 60, id="last"),
        pytest.param({"expected": 28, "extract": "first"}, "28 + 32 = 60", PASSED, 28, id="first"),
        pytest.param({"expected": 5, "extract": "first"}, "50 is the answer", FAILED, 50, id="whole-number"),
        pytest.param({"expected": 25, "extract": "any"}, "7 then 25 then 9", PASSED, 25, id="any"),
        pytest.param({"expected": 25, "extract": "any"}, "got 7 and 11", FAILED, 11, id="any-closest"),
        pytest.param({"expected": -5}, "5", FAILED, 5, id="sign"),
        pytest.param({"expected": 0.3}, "0.30", PASSED, 0.3, id="equal"),
        pytest.param({"expected": 0.3}, "0.3001", FAILED, 0.3001, id="equal-by-default"),
        pytest.param({"expected": 1, "tolerance": 0.1}, "1.1", PASSED, 1.1, id="tolerance-inclusive"),
        pytest.param({"expected": 1, "tolerance": 0.1}, "1.11", FAILED, 1.11, id="beyond-tolerance"),
        pytest.param({"expected": 200, "relative": 0.01}, "202", PASSED, 202, id="relative"),
        pytest.param({"expected": -200, "relative": 0.01}, "-202", PASSED, -202, id="relative-negative"),
        pytest.param({"expected": -200, "relative": 0.01}, "-203", FAILED, -203, id="beyond-relative"),
        pytest.param(
            {"expected": 200, "relative": 0.01, "tolerance": 5}, "205", PASSED, 205, id="larger-tolerance"
        ),
        pytest.param({"expected": 5}, "five", FAILED, None, id="no-number"),
        pytest.param(
            {"expected": 4111111111111111}, "4111111111111112", FAILED, 4111111111111112, id="16-digits"
        ),
        pytest.param({"expected": 2**53}, "9007199254740993", FAILED, 2**53 + 1, id="no-double"),
        pytest.param({"expected": 2**53}, "9,007,199,254,740,992", PASSED, 2**53, id="16-digits-equal"),
    ],
)
def test_the_number_has_to_be_within_the_tolerance(
    config: dict[str, Any], answer: str, verdict: Verdict, value: float | None
) -> None:
    result = run(Numeric, config, answered(answer))
    assert (result.verdict, result.value) == (verdict, value)
    assert f"expected {config['expected']}" in result.reason


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("0", 1, 0),
        ("1", 2, 2 / 3),
        ("2", 1, 2 / 3),
        ("-1", 1, 0),
        ("0", 0, 1),
        ("none", 1, 0),
        ("1e308", 1.5e308, 0.8),
    ],
)
def test_the_score_falls_with_the_difference(answer: str, expected: float, score: float) -> None:
    assert run(Numeric, {"expected": expected}, answered(answer)).score == pytest.approx(score)


def test_a_miss_in_the_last_of_many_digits_scores_less_than_one() -> None:
    result = run(Numeric, {"expected": 2**53}, answered(str(2**53 + 1)))
    assert result.score is not None
    assert not reaches(result.score, 1)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param({"expected_data": 42}, PASSED, id="data"),
        pytest.param({"expected_text": "6 times 7 is 42"}, PASSED, id="text"),
        pytest.param({"expected_data": "no number", "expected_text": "42"}, PASSED, id="data-is-text"),
        pytest.param({"expected_data": 41, "expected_text": "42"}, FAILED, id="data-first"),
        pytest.param({"expected_data": True}, SKIPPED, id="no-truth-value"),
        pytest.param({"expected_text": "many"}, SKIPPED, id="no-number"),
        pytest.param({}, SKIPPED, id="nothing"),
    ],
)
def test_it_falls_back_to_what_the_context_expects(facts: dict[str, Any], verdict: Verdict) -> None:
    assert run(Numeric, {"onMissing": "skip"}, answered("42", **facts)).verdict is verdict


def test_an_expected_number_in_the_config_wins_and_nan_is_none() -> None:
    assert run(Numeric, {"expected": 42}, answered("42", expected_data=41)).verdict is PASSED
    ctx = answered("42")
    ctx._pb.expected.data.number_value = float("nan")
    result = run(Numeric, {}, ctx)
    assert (result.verdict, result.unproven) == (FAILED, True)


def test_without_an_assistant_message_it_fails() -> None:
    result = run(Numeric, {"expected": 0}, context())
    assert (result.verdict, result.score, result.reason) == (FAILED, 0, "No assistant message found")


def test_a_text_that_would_hold_up_the_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric, "MAX_SCANNED", 9)
    large = run(Numeric, {"expected": 1}, answered("1" + " " * 9))
    assert large.error
    assert large.error.code == "INPUT_TOO_LARGE"


@pytest.mark.parametrize(
    "config",
    [
        {"expected": "1"},
        {"expected": float("inf")},
        {"tolerance": -1},
        {"relative": 2},
        {"extract": "second"},
    ],
)
def test_a_wrong_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=f"config/{next(iter(config))}"):
        Numeric.definition().compile(config)
