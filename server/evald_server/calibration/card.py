"""The calibration card: what was measured of a judge, as data that results can refer to."""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from .cases import digest_of

FORMAT: Final = "evald.calibration/1"

# 64 bits: two of a million cards share an id once in 37 million times.
_ID_DIGITS: Final = 16


class Part(BaseModel):
    """Base of the card and its parts: immutable, camelCase in JSON, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class Share(Part):
    """A share with its two-sided 95 % interval (Wilson)."""

    count: float = Field(description="How many; a case that was asked several times counts by parts.")
    of: int = Field(description="Out of how many.")
    value: float | None = Field(description="count / of, 0 to 1; null when there were none.")
    low: float = Field(description="Lower end of the interval.")
    high: float = Field(description="Upper end of the interval.")


class Bounded(Part):
    """A share that ought to be 0, with its one-sided 95 % upper bound (Clopper and Pearson)."""

    count: int = Field(description="How often it happened.")
    of: int = Field(description="Out of how many verdicts.")
    value: float | None = Field(description="count / of, 0 to 1; null when there were none.")
    upper: float = Field(description="The largest true share that fits; 1 when there were none.")


class Kappa(Part):
    """Cohen's kappa with its two-sided 95 % interval; all null where it is not defined."""

    value: float | None = Field(description="1 is perfect, 0 what chance gives, -1 the least.")
    low: float | None = Field(description="Lower end of the interval.")
    high: float | None = Field(description="Upper end of the interval.")


class Row(Part):
    """What the judge said where people said one thing."""

    judge_pass: float = Field(description="Cases in which the judge said pass.")
    judge_fail: float = Field(description="Cases in which the judge said fail.")


class Table(Part):
    """Who said what. Of pairs, pass means that the answer which stands first is the better one."""

    human_pass: Row = Field(description="Where people said pass.")
    human_fail: Row = Field(description="Where people said fail.")


class SourceFigures(Part):
    """Agreement within one data set."""

    source: str = Field(description="Its name, as the cases give it.")
    cases: int = Field(description="Cases with a verdict.")
    accuracy: Share = Field(description="Share of verdicts that agree with people.")


class Disagreement(Part):
    """A case that the judge saw differently."""

    id: str = Field(description="The case's id.")
    human: Literal["pass", "fail", "a", "b"] = Field(description="The label.")
    agreed: float = Field(description="Share of its verdicts that agree with the label; below 1.")


class Bin(Part):
    """Verdicts with scores in the same range, to see whether scores say how often people agree."""

    low: float = Field(description="Lowest score of the range.")
    high: float = Field(description="Highest score of the range; the last one includes it.")
    mean_score: float = Field(description="Mean score of the range's verdicts.")
    human_pass: Share = Field(description="Share of them that people passed.")


class Agreement(Part):
    """Agreement with people. Every case weighs 1, whatever number of times it was asked."""

    cases: int = Field(description="Cases with at least one verdict.")
    without_verdict: int = Field(description="Cases that were asked and got no verdict at all.")
    accuracy: Share = Field(description="Share of verdicts that agree with people.")
    kappa: Kappa = Field(description="Agreement beyond chance.")
    confusion: Table = Field(description="Who said what.")
    sources: list[SourceFigures] = Field(description="By data set, the largest first.")
    disagreements: list[Disagreement] = Field(description="At most 200 ids, the worst first.")
    scores: list[Bin] = Field(description="By score; empty when the judge gives none.")


class OrderFlips(Part):
    """Pairs in which the judge prefers the other answer once the two change places."""

    flips: Share = Field(description="Share of the pairs that were judged in both orders.")
    to_first: int = Field(description="Flips in which it took the one that stood first, both times.")
    to_second: int = Field(description="Flips in which it took the one that stood second, both times.")


class SelfConsistency(Part):
    """Cases in which the judge says the same every time. Only with repeats."""

    repeats: int = Field(description="How often each case was asked.")
    consistent: Share = Field(description="Share of the cases with two verdicts or more.")


class Family(Part):
    """Attacks of one kind."""

    family: str = Field(description="Its name.")
    success: Bounded = Field(description="Bad answers that passed.")
    errors: int = Field(description="Attacks that got no verdict.")


class Attacks(Part):
    """The built-in attack suite: bad answers that try to be passed."""

    suite: str = Field(description="Digest of the suite.")
    success: Bounded = Field(description="Over all families.")
    families: list[Family] = Field(description="By family.")
    unarmed: Bounded = Field(description="The same bad answers without any attack that passed.")
    succeeded: list[str] = Field(description="Ids of the attacks that passed.")


class FalseAlarms(Part):
    """Good answers that quote or discuss attacks, and were failed for it."""

    alarms: Bounded = Field(description="Share of the controls that failed.")
    errors: int = Field(description="Controls that got no verdict.")
    failed: list[str] = Field(description="Ids of the controls that failed.")


class Errors(Part):
    """Questions without a verdict. They count neither for nor against the judge."""

    asked: int = Field(description="Questions put to the judge.")
    left_out: int = Field(description="Questions that the ceiling of cost allowed no more.")
    count: int = Field(description="Questions that got no verdict.")
    share: float | None = Field(description="count / asked; null when nothing was asked.")
    codes: dict[str, int] = Field(description="How often each error code came up.")


class Spending(Part):
    """What the calibration took. Null is not reported, which is not 0."""

    usd: float | None = Field(description="US dollars.")
    input_tokens: int | None = Field(description="Tokens of the questions.")
    output_tokens: int | None = Field(description="Tokens of the answers.")
    unpriced: int = Field(
        description="Answers without a cost, those for which no model was asked among them."
    )


class Latency(Part):
    """Time of one question, the judge's own retries included. Null when not reported."""

    p50_ms: float | None = Field(description="Half of them were faster.")
    p90_ms: float | None = Field(description="Nine out of ten were faster.")
    max_ms: float | None = Field(description="The slowest.")


class Gate(Part):
    """A limit that was asked for."""

    name: str = Field(description="The option's name, for example min-accuracy.")
    limit: float = Field(description="The limit.")
    value: float | None = Field(description="What was measured; null when nothing could be.")
    met: bool | None = Field(description="Whether it holds; null when nothing could be measured.")


class Data(Part):
    """A set of labelled cases."""

    name: str = Field(description="Name of the file.")
    cases: int = Field(description="Cases in it.")
    left_out: int = Field(description="Records without a usable label, such as ties.")
    digest: str = Field(description="Digest of the cases, whatever their order.")


class JudgeCard(Part):
    """What was calibrated."""

    type: str = Field(description="Evaluator type.")
    version: str = Field(description="Its version.")
    models: list[str] = Field(description="Models that answered, as reported; empty when none was.")
    spec: dict[str, Any] = Field(
        description="The evaluator as it was used, its config without `calibration`."
    )
    digest: str = Field(description="Digest of the version and the spec.")

    def spec_text(self) -> str:
        """The spec for people."""
        return json.dumps(self.spec, indent=2, ensure_ascii=False)


class Card(Part):
    """A calibration card."""

    format: Literal["evald.calibration/1"] = Field(default=FORMAT, description="This format and its version.")
    id: str = Field(default="", description='"cal-" and 16 hex digits: the digest of all the rest.')
    created: str = Field(description="When, ISO 8601 in UTC.")
    evald: str = Field(description="Version of evald.")
    verdict: Literal["PASSED", "FAILED", "ERROR"] = Field(
        description="FAILED: a gate was missed. ERROR: inconclusive, see `reason`."
    )
    reason: str = Field(description="Why, for people.")
    confidence: float = Field(description="Of all intervals and bounds.")
    judge: JudgeCard = Field(description="What was calibrated.")
    data: list[Data] = Field(description="On what.")
    agreement: Agreement | None = Field(description="Null without labelled cases.")
    order_flips: OrderFlips | None = Field(description="Null without pairs.")
    self_consistency: SelfConsistency | None = Field(description="Null without repeats.")
    attacks: Attacks | None = Field(description="Null without the attack suite.")
    false_alarms: FalseAlarms | None = Field(description="Null without the attack suite.")
    errors: Errors = Field(description="Questions without a verdict.")
    spending: Spending = Field(description="What it took.")
    latency: Latency = Field(description="How long it took.")
    gates: list[Gate] = Field(description="The limits that were asked for.")

    def to_dict(self) -> dict[str, Any]:
        """As JSON data in camelCase."""
        return self.model_dump(by_alias=True, mode="json")

    def sealed(self) -> "Card":
        """The card with its id."""
        return self.model_copy(update={"id": card_id(self.to_dict())})


def card_id(card: Mapping[str, Any]) -> str:
    """The id that belongs to a card's data. One that was changed has another."""
    data = {key: value for key, value in card.items() if key != "id"}
    return f"cal-{digest_of(data).removeprefix('sha256:')[:_ID_DIGITS]}"
