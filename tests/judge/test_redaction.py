"""No key leaves the server, whether configured or only looking like one."""

import pytest

from evald_server.redaction import Redactor

KEY = "sk-canary-0123456789abcdef"
OTHER = "hunter2-hunter2"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [redacted]."),
        (f"{OTHER}{KEY}", "[redacted][redacted]"),
        ("Incorrect API key provided: sk-proj-********cdef", "Incorrect API key provided: [redacted]"),
        ("got Bearer abcdefgh.ijkl", "got [redacted]"),
        (
            "gsk_ and sk-1 and the risk-averse desk-bound keyboard",
            "gsk_ and sk-1 and the risk-averse desk-bound keyboard",
        ),
        ("", ""),
    ],
)
def test_keys_in_foreign_texts_are_hidden(text: str, shown: str) -> None:
    assert Redactor([KEY, OTHER, "", "abc"]).redact_text(text) == shown


def test_configured_keys_are_hidden_everywhere_in_a_request() -> None:
    body = {"messages": [{"content": f"a {KEY} b"}], "n": 1, "more": {"t": (OTHER, None, True, 0.5)}}
    assert Redactor([KEY, OTHER]).redact_json(body) == {
        "messages": [{"content": "a [redacted] b"}],
        "n": 1,
        "more": {"t": ["[redacted]", None, True, 0.5]},
    }
    assert body["n"] == 1
    assert Redactor([]).redact_json(body) == body


def test_what_only_looks_like_a_key_is_judged_and_told_as_it_is() -> None:
    body = {"content": "The agent said sk-somebody-elses-key-123"}
    assert Redactor([KEY]).redact_json(body) == body


def test_a_key_that_holds_another_one_is_hidden_whole() -> None:
    assert Redactor(["secret", "secret-and-more"]).redact_json({"t": "secret-and-more"}) == {
        "t": "[redacted]"
    }
