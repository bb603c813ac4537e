"""The calibration card: the measured figures of a judge, as data that results can refer to."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from .cases import digest_of

FORMAT: Final = "evald.calibration/1"

# 64 bits: the probability that two of a million cards share an id is 1 in 37 million.
_ID_DIGITS: Final = 16


class CardModel(BaseModel):
    """Base class of the card and its parts: immutable, camelCase in JSON, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class Share(CardModel):
    """A share with its two-sided 95 % interval (Wilson)."""

    count: float = Field(description="Numerator; a case that was asked several times counts in fractions.")
    of: int = Field(description="Denominator.")
    value: float | None = Field(description="count / of, 0 to 1; null if `of` is 0.")
    low: float = Field(description="Lower end of the interval.")
    high: float = Field(description="Upper end of the interval.")


class BoundedShare(CardModel):
    """A share that should be 0, with its one-sided 95 % upper bound (Clopper and Pearson)."""

    count: int = Field(description="Numerator.")
    of: int = Field(description="Denominator: queries with a verdict.")
    value: float | None = Field(description="count / of, 0 to 1; null if `of` is 0.")
    upper: float = Field(description="Upper bound of the true share; 1 if `of` is 0.")


class Kappa(CardModel):
    """Cohen's kappa with its two-sided 95 % interval; all null where kappa is undefined."""

    value: float | None = Field(description="1 is perfect agreement, 0 is chance, -1 is the minimum.")
    low: float | None = Field(description="Lower end of the interval.")
    high: float | None = Field(description="Upper end of the interval.")


class ConfusionRow(CardModel):
    """The judge's verdicts on cases with the same label."""

    judge_pass: float = Field(description="Cases that the judge passed.")
    judge_fail: float = Field(description="Cases that the judge failed.")


class ConfusionTable(CardModel):
    """Labels against verdicts. For pairs, pass means that the answer shown first is better."""

    human_pass: ConfusionRow = Field(description="Cases that people passed.")
    human_fail: ConfusionRow = Field(description="Cases that people failed.")


class SourceAgreement(CardModel):
    """Agreement within one dataset."""

    source: str = Field(description="The `source` of the cases.")
    cases: int = Field(description="Cases with a verdict.")
    accuracy: Share = Field(description="Share of verdicts that agree with the labels.")


class Disagreement(CardModel):
    """A case on which judge and label disagree."""

    id: str = Field(description="The case's id.")
    human: Literal["pass", "fail", "a", "b"] = Field(description="The label.")
    agreed: float = Field(description="Share of its verdicts that agree with the label; below 1.")


class ScoreBin(CardModel):
    """Verdicts with scores in one range, for comparing scores with the share of cases that people passed."""

    low: float = Field(description="Lower end of the range.")
    high: float = Field(description="Upper end of the range; included only in the last range.")
    mean_score: float = Field(description="Mean score of these verdicts.")
    human_pass: Share = Field(description="Share of them that people passed.")


class Agreement(CardModel):
    """Agreement with people. Every case has weight 1, however often it was asked."""

    cases: int = Field(description="Cases with at least one verdict.")
    without_verdict: int = Field(description="Cases that were asked and got no verdict.")
    accuracy: Share = Field(description="Share of verdicts that agree with the labels.")
    kappa: Kappa = Field(description="Agreement beyond chance.")
    confusion: ConfusionTable = Field(description="Labels against verdicts.")
    sources: list[SourceAgreement] = Field(description="By dataset, largest first.")
    disagreements: list[Disagreement] = Field(description="At most 200, worst first.")
    scores: list[ScoreBin] = Field(description="By score; empty if the judge reports none.")


class OrderFlips(CardModel):
    """Pairs for which the judge prefers the other answer once the two are swapped."""

    flips: Share = Field(description="Share of the pairs with a verdict in both orders.")
    without_verdict: int = Field(0, description="Pairs without a verdict in one order or both.")
    to_first: int = Field(description="Flips that prefer the answer shown first, both times.")
    to_second: int = Field(description="Flips that prefer the answer shown second, both times.")


class SelfConsistency(CardModel):
    """Cases with the same verdict every time. Only with repeats."""

    repeats: int = Field(description="Number of times that each case was asked.")
    consistent: Share = Field(description="Share of the cases with at least two verdicts.")


class AttackFamily(CardModel):
    """Attacks of one kind."""

    family: str = Field(description="Name of the family.")
    success: BoundedShare = Field(description="Bad answers that passed.")
    errors: int = Field(description="Attacks without a verdict.")


class AttackFigures(CardModel):
    """Results of the attack suite: bad answers that try to be passed."""

    suite: str = Field(description="Digest of the suite.")
    success: BoundedShare = Field(description="Over all families.")
    families: list[AttackFamily] = Field(description="By family.")
    unarmed: BoundedShare = Field(description="The same bad answers without an attack that passed.")
    succeeded: list[str] = Field(description="Ids of the attacks that passed.")


class FalseAlarms(CardModel):
    """Good answers that failed because they quote or discuss attacks."""

    alarms: BoundedShare = Field(description="Share of the controls that failed.")
    errors: int = Field(description="Controls without a verdict.")
    failed: list[str] = Field(description="Ids of the controls that failed.")


class QueryErrors(CardModel):
    """Queries without a verdict. They count neither for nor against the judge."""

    asked: int = Field(description="Queries sent to the judge.")
    left_out: int = Field(description="Queries that were not sent because of the cost limit.")
    count: int = Field(description="Queries without a verdict.")
    share: float | None = Field(description="count / asked; null if nothing was asked.")
    codes: dict[str, int] = Field(description="Number of queries by error code.")


class CalibrationCost(CardModel):
    """Usage of the whole calibration. Null means not reported, which is not 0."""

    usd: float | None = Field(description="US dollars.")
    input_tokens: int | None = Field(description="Input tokens.")
    output_tokens: int | None = Field(description="Output tokens.")
    unpriced: int = Field(description="Answers without a cost, including those that needed no model.")


class QueryLatency(CardModel):
    """Duration of one query, including the judge's own retries. Null if not reported."""

    p50_ms: float | None = Field(description="Median.")
    p90_ms: float | None = Field(description="90th percentile.")
    max_ms: float | None = Field(description="Maximum.")


class GateResult(CardModel):
    """A limit that was set."""

    name: str = Field(description="Name of the option, for example min-accuracy.")
    limit: float = Field(description="The limit.")
    value: float | None = Field(description="Measured value; null if nothing was measured.")
    met: bool | None = Field(
        description="Whether the limit is met; null if nothing was measured, or too many cases have no verdict."
    )


class CardDataset(CardModel):
    """A file of labelled cases."""

    name: str = Field(description="Name of the file.")
    cases: int = Field(description="Number of cases.")
    left_out: int = Field(description="Records without a usable label, such as ties.")
    digest: str = Field(description="Digest of the cases, independent of their order.")


class CalibratedJudge(CardModel):
    """The judge that was calibrated."""

    type: str = Field(description="Evaluator type.")
    version: str = Field(description="Version of the evaluator.")
    models: list[str] = Field(description="Models that answered, as reported; empty if none was reported.")
    spec: dict[str, Any] = Field(
        description="The evaluator as it was used, its config without `calibration`."
    )
    digest: str = Field(description="Digest of version and spec.")


class CalibrationCard(CardModel):
    """A calibration card."""

    format: Literal["evald.calibration/1"] = Field(default=FORMAT, description="This format and its version.")
    id: str = Field(default="", description='"cal-" and 16 hex digits: the digest of all other fields.')
    created: str = Field(description="Time of creation, ISO 8601 in UTC.")
    evald: str = Field(description="Version of evald.")
    verdict: Literal["PASSED", "FAILED", "ERROR"] = Field(
        description="FAILED: a gate was not met. ERROR: inconclusive, see `reason`."
    )
    reason: str = Field(description="Reason of the verdict, for people.")
    confidence: float = Field(description="Confidence level of all intervals and bounds.")
    judge: CalibratedJudge = Field(description="What was calibrated.")
    data: list[CardDataset] = Field(description="The files of labelled cases.")
    agreement: Agreement | None = Field(description="Null without labelled cases.")
    order_flips: OrderFlips | None = Field(description="Null without pairs.")
    self_consistency: SelfConsistency | None = Field(description="Null without repeats.")
    attacks: AttackFigures | None = Field(description="Null without the attack suite.")
    false_alarms: FalseAlarms | None = Field(description="Null without the attack suite.")
    errors: QueryErrors = Field(description="Queries without a verdict.")
    spending: CalibrationCost = Field(description="Cost and tokens.")
    latency: QueryLatency = Field(description="Duration of single queries.")
    gates: list[GateResult] = Field(description="The limits that were set.")

    def to_dict(self) -> dict[str, Any]:
        """Return the card as JSON data in camelCase."""
        return self.model_dump(by_alias=True, mode="json")

    def with_id(self) -> "CalibrationCard":
        """Return the card with its id set."""
        return self.model_copy(update={"id": card_id(self.to_dict())})


def card_id(card: Mapping[str, Any]) -> str:
    """Return the id for a card's data. A modified card has another id."""
    data = {key: value for key, value in card.items() if key != "id"}
    return f"cal-{digest_of(data).removeprefix('sha256:')[:_ID_DIGITS]}"
