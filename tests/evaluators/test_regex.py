"""Regular expressions are RE2's with JavaScript's escapes and flags, and none can hold up the server."""

import asyncio
import random
import time
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald.result import Result, Verdict
from evald_server.evaluators import regex
from evald_server.evaluators.regex import INLINE_WORK, MAX_WORK, Regex, to_re2

from ..attempts import attempts
from .contexts import answered, awaited, context, run

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR


@pytest.mark.parametrize(
    ("config", "answer", "verdict", "reason"),
    [
        ({"pattern": r"BK-\d{5}"}, "ref BK-12345", PASSED, r"Response matches pattern: BK-\d{5}"),
        ({"pattern": r"BK-\d{5}"}, "ref BK-123", FAILED, r"Response does not match pattern: BK-\d{5}"),
        (
            {"pattern": "sorry", "flags": "i", "mustMatch": False},
            "Sorry",
            FAILED,
            "Response matches forbidden pattern: sorry",
        ),
        (
            {"pattern": "sorry", "mustMatch": False},
            "Sorry",
            PASSED,
            "Response does not match forbidden pattern: sorry",
        ),
    ],
    ids=["match", "no-match", "forbidden", "case"],
)
def test_the_reason_says_the_pattern(
    config: dict[str, Any], answer: str, verdict: Verdict, reason: str
) -> None:
    result = run(Regex, config, answered(answer))
    assert (result.verdict, result.reason) == (verdict, reason)
    assert result.score == (1 if verdict is PASSED else 0)


# pattern, flags, a text that matches, a text that does not. Node.js 20 agrees, but for modifiers, which it does not
# know yet.
ALSO_JAVASCRIPT = [
    pytest.param(r"^\d+$", "", "123", "123\n", id="dollar-is-the-very-end"),
    pytest.param(r"^\d$", "", "5", "\u0665", id="d-is-ascii"),
    pytest.param(r"^\w+$", "", "a_9", "é", id="w-is-ascii"),
    pytest.param(r"\bcat\b", "", "a cat.", "cats", id="b"),
    pytest.param(r"\bé", "", "aé", "é", id="b-is-ascii"),
    pytest.param(r"\Bat", "", "cat", "at", id="B"),
    pytest.param("^a.$", "s", "a\u2028", "a", id="dot-all"),
    pytest.param("^b$", "", "b", "a\nb", id="no-m"),
    pytest.param("^b$", "m", "a\nb\nc", "ab", id="m"),
    pytest.param("^$", "m", "a\n\nb", "a\nb", id="m-empty-line"),
    pytest.param("a$\nb", "m", "a\nb", "ab", id="m-in-the-middle"),
    pytest.param("HELLO", "i", "hello", "help", id="i"),
    pytest.param("É", "i", "é", "e", id="i-beyond-ascii"),
    pytest.param("[a-z]{3}", "i", "ABC", "123", id="i-in-a-class"),
    pytest.param(r"^\w$", "iu", "\u017f", "é", id="iu-folds-w"),
    pytest.param("a", "g", "a", "b", id="g-is-ignored"),
    pytest.param(r"\x41\u00e9\t\0\n", "", "Aé\t\0\n", "A", id="escapes"),
    pytest.param(r"\u{1F600}", "u", "😀", "u", id="code-point"),
    pytest.param(r"\ud83d\ude00", "", "😀", "\ufffd", id="surrogate-pair"),
    pytest.param(r"^\p{Lu}\P{L}$", "u", "É1", "é1", id="property"),
    pytest.param(r"\p{Greek}", "u", "\u03b1", "a", id="script"),
    pytest.param(r"a\/b\-c", "", "a/b-c", "ab", id="needless-escapes"),
    pytest.param("(?<year>[0-9]{4})-(?:0[1-9])", "", "2024-05", "2024-00", id="groups"),
    pytest.param("^(?:ab|a|)$", "", "a", "b", id="empty-alternative"),
    pytest.param("^a+?b*?$", "", "aab", "ba", id="lazy"),
    pytest.param("^a{2,3}b{2}c{1,}$", "", "aaabbc", "abbc", id="counted"),
    pytest.param("^a{,2}$", "", "a{,2}", "aa", id="no-quantifier"),
    pytest.param("^{x}]$", "", "{x}]", "x", id="lone-brackets"),
    pytest.param(r"^[a\-z]$", "", "-", "b", id="escaped-hyphen"),
    pytest.param(r"^[\w-.]$", "", "-", "+", id="hyphen-after-a-set"),
    pytest.param("^[a-]$", "", "-", "b", id="hyphen-at-the-end"),
    pytest.param("^[^^]$", "", "a", "^", id="caret"),
    pytest.param("^[.*$|(]$", "", "*", "a", id="syntax-in-a-class"),
    pytest.param("(?i:A)b", "", "ab", "aB", id="modifier-on"),
    pytest.param("a(?-i:b)", "i", "Ab", "AB", id="modifier-off"),
    pytest.param("^(?s:.).$", "", "\nx", "x\n", id="modifier-ends-with-its-group"),
]


@pytest.mark.parametrize(("pattern", "flags", "matching", "other"), ALSO_JAVASCRIPT)
def test_a_pattern_means_what_it_means_in_javascript(
    pattern: str, flags: str, matching: str, other: str
) -> None:
    config = {"pattern": pattern, "flags": flags}
    assert run(Regex, config, answered(matching)).verdict is PASSED
    assert run(Regex, config, answered(other)).verdict is FAILED


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("BK-[0-9", "RE2 does not accept the pattern: missing ]: [0-9"),
        ("x(a", "missing ): x(a"),
        ("a)", "unexpected ): a)"),
        ("a**", "bad repetition operator: **"),
        ("+a", "no argument for repetition operator: +"),
        ("ab{2,1}", "invalid repetition size: {2,1}"),
        ("[b-a]", "invalid character class range: b-a"),
        ("a\\", "trailing \\"),
        ("a(?=b)", "invalid perl operator: (?=; RE2 does not support look-around and back-references"),
        ("a(?!b)", "look-around"),
        ("(?<=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", r"invalid escape sequence: \1; RE2 does not support look-around and back-references"),
        (r"(?<x>a)\k<x>", "back-references"),
        ("(?>a)", "invalid perl operator: (?>"),
        ("a{1001}", "invalid repetition size: {1001}"),
        ("(?:a{30}){1,999}", "invalid repetition size"),
        (r"\p{L}{900}", "pattern too large"),
        (r"\p{Emoji}", "invalid character class range"),
        (r"\cJ", r"invalid escape sequence: \c"),
        (r"\u{110000}", r"invalid escape sequence: \x{110000"),
        (r"\u12", r"invalid escape sequence: \u"),
        (r"\ud800", "half of a surrogate pair"),
        (r"\u{dfff}", "half of a surrogate pair"),
        ("[^]", "missing ]"),
        ("(" * 1010, "missing )"),
        ("é" * 600, "got 1200 bytes, wanted at most 1024"),
    ],
)
def test_what_is_not_valid_or_not_linear_is_refused_with_the_part_that_is_wrong(
    pattern: str, problem: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        Regex.definition().compile({"pattern": pattern})
    (found,) = refused.value.problems
    assert found.path == "/pattern"
    assert problem in found.message


@pytest.mark.parametrize(
    ("flags", "problem"),
    [("y", "unknown flag 'y'"), ("ix", "unknown flag 'x'"), ("ii", "flag 'i' given twice")],
)
def test_a_flag_that_javascript_or_evald_does_not_know_is_refused(flags: str, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=f"config/flags: {problem}"):
        Regex.definition().compile({"pattern": "a", "flags": flags})


def test_a_pattern_over_1_kib_is_refused() -> None:
    Regex.definition().compile({"pattern": "x" * 1024})
    with pytest.raises(InvalidConfig, match=r"config/pattern: .*at most 1024"):
        Regex.definition().compile({"pattern": "x" * 1025})


@pytest.mark.parametrize("must_match", [True, False])
@pytest.mark.parametrize("message", ["last", "first", "all"])
def test_without_an_assistant_message_it_fails(message: str, must_match: bool) -> None:
    result = run(Regex, {"pattern": "a", "mustMatch": must_match, "message": message}, context())
    assert (result.verdict, result.score, result.reason) == (FAILED, 0, "No assistant message found")


def test_text_blocks_are_joined_with_nothing_between() -> None:
    blocks = [{"type": "text", "text": "hello "}, {"type": "image"}, {"type": "text", "text": "world"}]
    ctx = context([{"role": "assistant", "content": blocks}])
    assert run(Regex, {"pattern": "^hello world$"}, ctx).verdict is PASSED


def test_the_config_says_which_message_is_the_answer() -> None:
    ctx = context([{"role": "assistant", "content": text} for text in ("first", "second")])
    for which, pattern in (("last", "^second$"), ("first", "^first$"), ("all", "^first\nsecond$")):
        assert run(Regex, {"pattern": pattern, "message": which}, ctx).verdict is PASSED


def _of_work(work: int) -> tuple[Any, str]:
    """A compiled evaluator that is slow for its size, and a text that makes it work this much."""
    evaluate = Regex.definition().compile({"pattern": "(a|b)*a(a|b){20}c"})
    size = evaluate.__self__._program_size  # type: ignore[attr-defined]
    rng = random.Random(3)
    return evaluate, "".join(rng.choices("ab", k=work // size))


def test_a_cheap_search_answers_at_once_and_a_costly_one_isawaited() -> None:
    evaluate, text = _of_work(INLINE_WORK)
    assert isinstance(evaluate(answered(text)), Result)
    outcome = evaluate(answered(text * 2))
    assert isinstance(outcome, Awaitable)
    assert asyncio.run(awaited(outcome)).verdict is FAILED


def test_a_costly_search_leaves_the_event_loop_free() -> None:
    evaluate, text = _of_work(MAX_WORK)

    async def beside() -> int:
        search = asyncio.ensure_future(evaluate(answered(text)))
        turns = 0
        while not search.done():
            await asyncio.sleep(0)
            turns += 1
        assert (await search).verdict is FAILED
        return turns

    # The search takes 50 ms, a turn of the loop 20 us; one that blocks the loop leaves it 2 turns.
    assert asyncio.run(beside()) > 20


def test_a_search_over_the_limit_is_an_error_that_says_so() -> None:
    evaluate, text = _of_work(MAX_WORK)
    result = evaluate(answered(text * 2))
    assert (result.verdict, result.error.code) == (ERROR, "INPUT_TOO_LARGE")
    assert "at most 10000000" in result.reason


def _hostile() -> Iterator[tuple[str, str]]:
    """70 patterns with the alphabet that hurts them: nested and overlapping repetition, long counted
    classes, many alternatives, Unicode classes."""
    for step in range(0, 20, 3):
        n, few = 10 + 51 * step, 10 + step
        yield f"(a|b)*a(a|b){{{n}}}c", "ab"
        yield f"(a?){{{n}}}a{{{n}}}b", "a"
        yield f"((a{{1,{few}}}){{1,{few}}})b", "a"
        yield f"[ab]{{{n}}}c", "ab"
        yield f"(.{{1,{n}}}a){{1,{1000 // n}}}$", "ab"
        yield f"(.|\\n){{{n}}}x", "é漢"
        yield "|".join(f"{chr(97 + i % 26)}.{{{i + few}}}z" for i in range(20)), "abcdefghij"
        yield "(a*)*" * few + "b", "a"
        yield f"\\p{{L}}{{{few}}}!", "aé"
        yield f"^(([a-z])+.)+[A-Z]([a-z]{{{few}}})+$", "a"


def test_70_hostile_patterns_end_in_time_and_within_memory() -> None:
    rng = random.Random(11)
    before = _resident_mib()
    patterns = list(_hostile())
    assert len(set(patterns)) == 70
    kept = []
    for pattern, alphabet in patterns:
        evaluate = None
        for attempt in attempts(0.3, clock=time.process_time):
            with attempt, suppress(InvalidConfig):
                evaluate = Regex.definition().compile({"pattern": pattern, "flags": "u"})
        if evaluate is None:
            continue
        kept.append(evaluate)
        largest = MAX_WORK // evaluate.__self__._program_size  # type: ignore[attr-defined]
        text = "".join(rng.choices(alphabet, k=10_000)).encode() * (largest // 10_000 + 1)
        ctx = answered(text[:largest].decode(errors="ignore"))
        # Time on the processor, so that a busy machine does not count.
        for attempt in attempts(0.3, clock=time.process_time):
            with attempt:
                result = asyncio.run(awaited(evaluate(ctx)))
            assert result.verdict is not ERROR
    assert len(kept) > 50
    assert _resident_mib() - before < 100


def _resident_mib() -> float:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text().split()[1]) * 4096 / 2**20


def test_a_refused_pattern_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidConfig):
        Regex.definition().compile({"pattern": r"\p{L}{900}", "flags": "u"})
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("pattern", "flags", "converted"),
    [
        ("a.é/[b-]", "", "a.é/[b-]"),
        (r"\u0041[\u00e9-\u{1F600}]", "", r"\x{41}[\x{E9}-\x{1F600}]"),
        (r"\ud83d\ude00", "u", r"\x{1F600}"),
        (r"\ud7ff\ue000", "", r"\x{D7FF}\x{E000}"),
        (r"\\u0041\\\u0041", "", r"\\u0041\\\x{41}"),
        ("a", "gu", "a"),
        ("a|b", "smi", "(?ims)a|b"),
    ],
)
def test_only_escapes_of_code_points_and_flags_are_converted(
    pattern: str, flags: str, converted: str
) -> None:
    assert to_re2(pattern, flags) == converted


def test_costly_searches_leave_one_core_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (8, 7), (None, 1)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert regex._threads.__wrapped__()._max_workers == threads


@pytest.mark.parametrize(
    "pattern", ["", ".*", "(?:)", "()", "a*", "x?|y", "|", "^", "$", "(?i)", "[$^]*", r"\d{0,3}", "^a*"]
)
@pytest.mark.parametrize("must_match", [True, False])
def test_a_pattern_that_every_text_matches_is_refused(pattern: str, must_match: bool) -> None:
    with pytest.raises(InvalidConfig, match="nothing would be checked"):
        Regex.definition().compile({"pattern": pattern, "mustMatch": must_match})


@pytest.mark.parametrize("pattern", ["^$", "^.*$", r"\b", r"\A\z", r"^\s*$", "a*b", r"\$*x", "[*]"])
def test_a_pattern_that_some_text_does_not_match_is_not(pattern: str) -> None:
    assert Regex.definition().compile({"pattern": pattern})


@pytest.mark.parametrize(
    ("literal", "advice"),
    [
        ("/secret/i", "the pattern secret and flags i"),
        ("/secret/", "the pattern secret, or"),
        (r"/a\/b[/]c/gm", r"flags gm"),
        ("/^x$/u", r"\[/\]\^x\$\[/\]u"),
    ],
)
def test_a_literal_of_javascript_is_refused(literal: str, advice: str) -> None:
    for config in ({"pattern": literal}, {"pattern": literal, "mustMatch": False}):
        with pytest.raises(InvalidConfig, match=advice):
            Regex.definition().compile(config)
    for pattern in ("/api/v1/", "a/b/i", "[/]secret[/]i", "/secret", "/secret/q"):
        assert Regex.definition().compile({"pattern": pattern})
