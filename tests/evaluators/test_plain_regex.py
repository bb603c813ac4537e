"""Plain patterns: both engines find the same."""

import re

import pytest
import re2
from hypothesis import example, given
from hypothesis import strategies as st

from evald_server.evaluators.js_regex import to_re2
from evald_server.evaluators.plain_regex import compile_plain

_atoms = st.sampled_from(
    [
        "a",
        "b",
        "B",
        "K",
        "-",
        "0",
        "7",
        " ",
        "_",
        "/",
        ":",
        r"\.",
        r"\$",
        r"\[",
        r"\\",
        r"\d",
        r"\w",
        "[0-9]",
        "[a-c]",
        "[A-Za-z_]",
        "[xyz]",
        "[0-9A-F]",
    ]
)
_pieces = st.builds(
    lambda atom, times: atom + times, _atoms, st.sampled_from(["", "", "", "{1}", "{2}", "{6}"])
)
_alternatives = st.builds(
    lambda start, pieces, end: start + "".join(pieces) + end,
    st.sampled_from(["", "", "^"]),
    st.lists(_pieces, min_size=1, max_size=5),
    st.sampled_from(["", "", "$"]),
)
_patterns = st.lists(_alternatives, min_size=1, max_size=3).map("|".join)
_texts = st.text(st.sampled_from("abBKxz07F-_ /:.$[\\\n\réß\u2028😀"), max_size=12)


@given(_patterns, _texts)
@example("BK-[0-9]{6}", "your booking BK-170293.")
@example("a$", "a\n")
@example("^a", "b\na")
@example(r"\d", "٣")
@example(r"\w", "é")
def test_python_finds_what_re2_finds(pattern: str, text: str) -> None:
    plain = compile_plain(pattern, "")
    if plain is None:  # too long
        return
    options = re2.Options()
    options.log_errors = False
    found = re2.compile(to_re2(pattern).encode(), options).search(text.encode())
    assert (plain.search(text.encode()) is None) is (found is None)


@pytest.mark.parametrize(
    "pattern",
    [
        "BK-[0-9]{6}",
        "^yes$",
        "refund|no refund",
        r"[A-Z]{3}\d{3}",
        r"\$[0-9]{3}",
        "^a|b$",
        "a" * 64,
        "[0-9]{64}",
    ],
)
def test_what_can_be_tried_in_one_way_only_is_plain(pattern: str) -> None:
    assert compile_plain(pattern, "") is not None


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "a+",
            "a*",
            "a?",
            "a{2,3}",
            "(a)",
            "(?:a|b)c",
            ".",
            "[^a]",
            r"\s",
            r"\b",
            r"a\1",
            "é",
            "",
            "a||b",
            "|a",
        ),
        *(
            "a" * 65,
            "[0-9]{65}",
            "[0-9]{40}|[0-9]{40}",
            "[a-z]{99}",
            "^",
            "$",
            "a$b",
            "a^b",
            "[]",
            "[a",
            "a{0}",
            "[z-a]+",
        ),
    ],
)
def test_everything_else_is_left_to_re2(pattern: str) -> None:
    assert compile_plain(pattern, "") is None


@pytest.mark.parametrize(
    ("flags", "plain"), [("", True), ("g", True), ("u", True), ("i", False), ("m", False), ("s", False)]
)
def test_flags_that_change_what_matches_are_left_to_re2(flags: str, plain: bool) -> None:
    assert (compile_plain("a", flags) is not None) is plain


def test_a_search_takes_time_in_proportion_to_the_text() -> None:
    pattern = compile_plain("[0-9]{63}x", "")
    assert pattern is not None
    # Quadratic, it would take minutes.
    assert pattern.search(b"0" * 300_000) is None
    assert isinstance(pattern, re.Pattern)
