"""LangEvals: `exact_match` takes its reference from the data set."""

from ..replay import FAILED, Call, Case, Difference, Expect, Vector, Wanted, answered, says

_NOT_EQUAL = Expect((Wanted(FAILED),))

DIFFERENCES = {
    "FW-0528": Difference(
        "they can strip punctuation from both texts before they compare",
        "exact-match trims and ignores case when asked, and nothing else: punctuation is part of a text",
        _NOT_EQUAL,
    ),
    "FW-0531": Difference(
        'loose equality takes "0" for "false"',
        "exact-match: byte equality by default",
        _NOT_EQUAL,
    ),
    "FW-0536": Difference(
        'loose equality takes "1.50" for "1.5"',
        "exact-match: byte equality by default; numbers are compared by numeric",
        _NOT_EQUAL,
    ),
}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    config, given = vector["config"], vector["input"]
    spec = {
        "type": "exact-match",
        "config": {
            "trim": config.get("trim_whitespace", False),
            "ignoreCase": not config.get("case_sensitive", True),
        },
    }
    turn = answered(given["output"], expected=given["expected_output"])
    return Case(Call([spec], turn), says(vector["expected"]["passed"]))
