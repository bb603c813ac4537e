"""All rules, in the order in which they are checked.

A rule's number never changes and is never reused.
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple

from .checks import description, encryption, results, sessions, times, turns
from .link import Mode
from .trial import Trial


class Severity(Enum):
    """Severity of a broken rule."""

    MUST = "must"
    """The plugin breaks the contract."""
    SHOULD = "should"
    """The plugin works, but not as well as it could."""


class ContractRule(NamedTuple):
    """One rule.

    modes: to which it applies. looks_back: it checks the outputs of earlier rules.
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
    ContractRule("EV01", "The plugin has a name and a version.", description.is_named),
    ContractRule("EV02", "It speaks evald.plugin.v1.", description.speaks_the_contract),
    ContractRule("EV03", "It offers at least one type, and each type once.", description.offers_types_once),
    ContractRule("EV04", "Type names are lower case, at most 63 bytes.", description.names_fit_the_pattern),
    ContractRule(
        "EV05",
        "Type names have a vendor prefix.",
        description.names_have_a_prefix,
        severity=Severity.SHOULD,
    ),
    ContractRule("EV06", "Every type has a version.", description.types_have_versions),
    ContractRule("EV07", "Every type is an assertion or a metric.", description.types_have_kinds),
    ContractRule("EV08", "Config schemas are JSON Schemas of an object.", description.schemas_are_valid),
    ContractRule("EV09", "Config schemas refer to nothing outside.", description.schemas_stand_alone),
    ContractRule("EV10", "max_concurrency is 0 or more.", description.concurrency_is_a_number),
    ContractRule("EV11", "Metric descriptors make sense.", description.metrics_can_be_read),
    ContractRule("EV12", "Describe always says the same.", description.describes_itself_alike, _TARGET),
    ContractRule("EV13", "Health of the service is SERVING.", description.is_healthy, _TARGET),
    # Turns of every kind.
    ContractRule("EV20", "A plain turn gets a verdict.", turns.plain_turn),
    ContractRule("EV21", "A task that is sent again gets the same answer.", turns.same_task_again),
    ContractRule("EV22", "An empty answer breaks nothing.", turns.empty_answer),
    ContractRule("EV23", "An answer that is null breaks nothing.", turns.null_answer),
    ContractRule("EV24", "A turn without messages breaks nothing.", turns.no_messages),
    ContractRule("EV25", "An answer of 1 MB breaks nothing.", turns.one_megabyte),
    ContractRule("EV26", "Scripts other than Latin break nothing.", turns.non_latin),
    ContractRule("EV27", "Tool calls, blocks and unknown roles break nothing.", turns.every_form),
    ContractRule("EV28", "Unknown fields are tolerated.", turns.unknown_fields),
    ContractRule("EV29", "A type that is not offered gets no verdict.", turns.unknown_type),
    ContractRule(
        "EV30",
        "A config that does not fit gets no verdict.",
        turns.unfit_config,
        severity=Severity.SHOULD,
    ),
    ContractRule(
        "EV31", "As many tasks at a time as it has places each get their own answer.", turns.side_by_side
    ),
    # Time.
    ContractRule("EV40", "A task whose time is up ends.", times.time_that_is_up),
    ContractRule("EV41", "A task that is cancelled ends.", times.cancelled_tasks),
    ContractRule("EV42", "A busy plugin still answers whether it is alive.", times.busy),
    # Sessions.
    ContractRule("EV60", "A session begins with hello.", sessions.begins_with_hello, _CONNECT),
    ContractRule("EV61", "A ping is answered within a second.", sessions.answers_pings, _CONNECT),
    ContractRule("EV62", "A session skips frames that it does not know.", sessions.skips_frames, _CONNECT),
    ContractRule("EV63", "Open tasks are finished when the server stops.", sessions.drains, _CONNECT),
    ContractRule("EV64", "A broken session is opened anew within 10 s.", sessions.comes_back, _CONNECT),
    ContractRule(
        "EV65",
        "It offers to take a broken session over.",
        sessions.offers_to_go_on,
        _CONNECT,
        Severity.SHOULD,
    ),
    ContractRule("EV66", "It is back 10 s after the server is.", sessions.outlives_the_server, _CONNECT),
    ContractRule(
        "EV67",
        "Credit is at least 1, and never above max_concurrency.",
        sessions.allows_what_it_can_take,
        _CONNECT,
        looks_back=True,
    ),
    ContractRule(
        "EV68",
        "Tasks are completed once; progress is of open ones.",
        sessions.keeps_to_the_protocol,
        _CONNECT,
        looks_back=True,
    ),
    # TLS.
    ContractRule(
        "EV70",
        "A server with a certificate of another CA gets no connection.",
        encryption.refuses_another_ca,
        _CONNECT,
    ),
    ContractRule(
        "EV71",
        "Callers without a certificate get no answer.",
        encryption.wants_a_certificate,
        _TARGET,
        Severity.SHOULD,
    ),
    # What holds for every output so far.
    ContractRule(
        "EV80", "Verdicts are PASSED, FAILED, ERROR or SKIPPED.", results.verdicts_are_known, looks_back=True
    ),
    ContractRule(
        "EV81", "Scores are from 0 to 1, and not on errors.", results.scores_are_in_range, looks_back=True
    ),
    ContractRule("EV82", "Numbers are finite.", results.numbers_are_finite, looks_back=True),
    ContractRule("EV83", "Metrics measure, and never fail.", results.metrics_never_fail, looks_back=True),
    ContractRule(
        "EV84",
        "`error` is set exactly when the verdict is ERROR.",
        results.errors_are_explained,
        looks_back=True,
    ),
    ContractRule("EV85", "Error codes are those of the contract.", results.codes_are_known, looks_back=True),
    ContractRule(
        "EV86",
        "Reasons have at most 8 KiB.",
        results.reasons_are_short,
        severity=Severity.SHOULD,
        looks_back=True,
    ),
    ContractRule(
        "EV87",
        "Outputs are at most 1 MiB, their metadata 256 KiB, 32 levels, 10,000 items.",
        results.outputs_are_small,
        looks_back=True,
    ),
    ContractRule("EV88", "Only a failed verdict is pending.", results.pending_means_failed, looks_back=True),
)
