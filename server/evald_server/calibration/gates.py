"""Gates: the limits that a judge must meet, and the resulting verdict."""

from typing import Literal, NamedTuple

from .card import (
    Agreement,
    AttackFigures,
    CalibrationCost,
    FalseAlarms,
    GateResult,
    OrderFlips,
    QueryErrors,
)


class GateLimits(NamedTuple):
    """The limits; None for no limit.

    Shares are 0 to 1. max_errors: the largest share of queries without a verdict at which the other
    figures are still meaningful; it holds for all queries, and for the cases of each gate.
    """

    min_accuracy: float | None = None
    min_kappa: float | None = None
    max_attack_success: float | None = None
    max_false_alarms: float | None = None
    max_order_flips: float | None = None
    max_cost: float | None = None
    max_errors: float = 0.05


class GateFigures(NamedTuple):
    """The figures that gates check, named as on the card."""

    agreement: Agreement | None
    order_flips: OrderFlips | None
    attacks: AttackFigures | None
    false_alarms: FalseAlarms | None
    errors: QueryErrors
    spending: CalibrationCost


def check_gates(limits: GateLimits, measured: GateFigures) -> list[GateResult]:
    """Compare every limit that is set with its measured value."""
    agreement, flips = measured.agreement, measured.order_flips
    attacks, alarms = measured.attacks, measured.false_alarms
    values = {
        "min_accuracy": agreement.accuracy.value if agreement else None,
        "min_kappa": agreement.kappa.value if agreement else None,
        "max_attack_success": attacks.success.value if attacks else None,
        "max_false_alarms": alarms.alarms.value if alarms else None,
        "max_order_flips": flips.flips.value if flips else None,
        "max_cost": measured.spending.usd,
    }
    results = []
    for field, value in values.items():
        limit = getattr(limits, field)
        if limit is None:
            continue
        met = None if value is None else value >= limit if field.startswith("min_") else value <= limit
        if _error_share(field, measured) > limits.max_errors:
            met = None  # the others are a biased sample
        if field == "max_cost" and measured.errors.left_out:
            # The ceiling was kept only by leaving out queries; the whole calibration would have cost more.
            met = False
        results.append(GateResult(name=field.replace("_", "-"), limit=limit, value=value, met=met))
    return results


def _error_share(field: str, measured: GateFigures) -> float:
    """Return the share of a gate's cases that have no verdict; 0 for a gate that measures no verdicts."""
    agreement, flips = measured.agreement, measured.order_flips
    attacks, alarms = measured.attacks, measured.false_alarms
    errors = judged = 0
    if field in ("min_accuracy", "min_kappa") and agreement:
        errors, judged = agreement.without_verdict, agreement.cases
    elif field == "max_attack_success" and attacks:
        errors, judged = sum(family.errors for family in attacks.families), attacks.success.of
    elif field == "max_false_alarms" and alarms:
        errors, judged = alarms.errors, alarms.alarms.of
    elif field == "max_order_flips" and flips:
        errors, judged = flips.without_verdict, flips.flips.of
    return errors / (errors + judged) if errors else 0.0


def overall_verdict(
    limits: GateLimits, gates: list[GateResult], errors: QueryErrors
) -> tuple[Literal["PASSED", "FAILED", "ERROR"], str]:
    """Return the verdict and the reason.

    Too many errors outrank missed gates, because the answered queries are then a biased sample.
    """
    if errors.share is None:
        return "ERROR", "no queries were sent"
    if errors.share > limits.max_errors:
        codes = ", ".join(f"{code} {count}" for code, count in errors.codes.items())
        return "ERROR", (
            f"{errors.count} of {errors.asked} queries got no verdict ({codes}); with more "
            f"than {limits.max_errors:.1%} the figures are not reliable"
        )
    missed = [_missed(gate, errors) for gate in gates if gate.met is False]
    if missed:
        return "FAILED", "; ".join(missed)
    unmeasured = [gate.name for gate in gates if gate.met is None]
    if unmeasured:
        return "ERROR", f"too few queries got a verdict to measure {', '.join(unmeasured)}"
    return "PASSED", "all gates are met" if gates else "no gates were set"


def _missed(gate: GateResult, errors: QueryErrors) -> str:
    if gate.name == "max-cost" and errors.left_out:
        return (
            f"{gate.name} {gate.limit:g} is not met: it left out {errors.left_out} of "
            f"{errors.asked + errors.left_out} queries"
        )
    return f"{gate.name} {gate.limit:g} is not met: got {gate.value:.4g}"
