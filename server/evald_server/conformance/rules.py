"""Every rule that the kit checks, in the order in which it checks them.

A rule's number never changes and is never given again.
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple

from .checks import description, results, sessions, times, turns
from .links import Mode
from .trial import Trial


class Severity(Enum):
    """What it means that a rule is broken."""

    MUST = "must"
    """The plugin does not fulfil the contract."""
    SHOULD = "should"
    """It works, but not as well as it could."""


class Rule(NamedTuple):
    """One rule.

    modes: the ways in for which it holds. looks_back: it looks at what the plugin has said so far.
    """

    number: str
    sentence: str
    check: Callable[[Trial], Awaitable[None]]
    modes: tuple[Mode, ...] = ("target", "connect")
    severity: Severity = Severity.MUST
    looks_back: bool = False


_TARGET: Final[tuple[Mode, ...]] = ("target",)
_CONNECT: Final[tuple[Mode, ...]] = ("connect",)

RULES: Final = (
    # What it says of itself.
    Rule("EV01", "The plugin has a name and a version.", description.is_named),
    Rule("EV02", "It speaks evald.plugin.v1.", description.speaks_the_contract),
    Rule("EV03", "It offers at least one type, and each type once.", description.offers_types_once),
    Rule("EV04", "Type names are lower case, at most 63 bytes.", description.names_fit_the_pattern),
    Rule(
        "EV05",
        "Type names have a vendor prefix.",
        description.names_have_a_prefix,
        severity=Severity.SHOULD,
    ),
    Rule("EV06", "Every type has a version.", description.types_have_versions),
    Rule("EV07", "Every type is an assertion or a metric.", description.types_have_kinds),
    Rule("EV08", "Config schemas are JSON Schemas of an object.", description.schemas_are_valid),
    Rule("EV09", "Config schemas refer to nothing outside.", description.schemas_stand_alone),
    Rule("EV10", "max_concurrency is 0 or more.", description.concurrency_is_a_number),
    Rule("EV11", "Metric descriptors make sense.", description.metrics_can_be_read),
    Rule("EV12", "Describe always says the same.", description.describes_itself_alike, _TARGET),
    Rule("EV13", "Health of the service is SERVING.", description.is_healthy, _TARGET),
    # Turns of every kind.
    Rule("EV20", "A plain turn gets a verdict.", turns.plain_turn),
    Rule("EV21", "A task that is sent again gets the same answer.", turns.same_task_again),
    Rule("EV22", "An empty answer breaks nothing.", turns.empty_answer),
    Rule("EV23", "An answer that is null breaks nothing.", turns.null_answer),
    Rule("EV24", "A turn without messages breaks nothing.", turns.no_messages),
    Rule("EV25", "An answer of 1 MB breaks nothing.", turns.one_megabyte),
    Rule("EV26", "Scripts other than Latin break nothing.", turns.non_latin),
    Rule("EV27", "Tool calls, blocks and unknown roles break nothing.", turns.every_form),
    Rule("EV28", "Unknown fields are tolerated.", turns.unknown_fields),
    Rule("EV29", "A type that is not offered gets no verdict.", turns.unknown_type),
    Rule(
        "EV30",
        "A config that does not fit gets no verdict.",
        turns.unfit_config,
        severity=Severity.SHOULD,
    ),
    Rule("EV31", "As many tasks at a time as it has places each get their own answer.", turns.side_by_side),
    # Time.
    Rule("EV40", "A task whose time is up ends.", times.time_that_is_up),
    Rule("EV41", "A task that is cancelled ends.", times.cancelled_tasks),
    Rule("EV42", "A busy plugin still answers whether it is alive.", times.busy),
    # Sessions.
    Rule("EV60", "A session begins with hello.", sessions.begins_with_hello, _CONNECT),
    Rule("EV61", "A ping is answered within a second.", sessions.answers_pings, _CONNECT),
    Rule("EV62", "A session skips frames that it does not know.", sessions.skips_frames, _CONNECT),
    Rule("EV63", "Open tasks are finished when the server stops.", sessions.drains, _CONNECT),
    Rule("EV64", "A broken session is opened anew within 10 s.", sessions.comes_back, _CONNECT),
    Rule(
        "EV65",
        "It offers to take a broken session over.",
        sessions.offers_to_go_on,
        _CONNECT,
        Severity.SHOULD,
    ),
    Rule("EV66", "It is back 10 s after the server is.", sessions.outlives_the_server, _CONNECT),
    Rule(
        "EV67",
        "Credit is at least 1, and never above max_concurrency.",
        sessions.allows_what_it_can_take,
        _CONNECT,
        looks_back=True,
    ),
    Rule(
        "EV68",
        "Tasks are completed once; progress is of open ones.",
        sessions.keeps_to_the_protocol,
        _CONNECT,
        looks_back=True,
    ),
    # What holds for every output so far.
    Rule(
        "EV80", "Verdicts are PASSED, FAILED, ERROR or SKIPPED.", results.verdicts_are_known, looks_back=True
    ),
    Rule("EV81", "Scores are from 0 to 1, and not on errors.", results.scores_are_in_range, looks_back=True),
    Rule("EV82", "Numbers are finite.", results.numbers_are_finite, looks_back=True),
    Rule("EV83", "Metrics measure, and never fail.", results.metrics_never_fail, looks_back=True),
    Rule(
        "EV84",
        "`error` is set exactly when the verdict is ERROR.",
        results.errors_are_explained,
        looks_back=True,
    ),
    Rule("EV85", "Error codes are those of the contract.", results.codes_are_known, looks_back=True),
    Rule(
        "EV86",
        "Reasons have at most 8 KiB.",
        results.reasons_are_short,
        severity=Severity.SHOULD,
        looks_back=True,
    ),
    Rule(
        "EV87",
        "Outputs are at most 1 MiB, their metadata 256 KiB, 32 levels, 10,000 items.",
        results.outputs_are_small,
        looks_back=True,
    ),
    Rule("EV88", "Only a failed verdict is pending.", results.pending_means_failed, looks_back=True),
)
