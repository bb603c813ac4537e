"""The limits that a judge has to keep, and the verdict that follows."""

from typing import Literal, NamedTuple

from .card import Agreement, Attacks, Errors, FalseAlarms, Gate, OrderFlips, Spending


class Limits(NamedTuple):
    """What is asked of a judge; None asks nothing.

    Shares are 0 to 1. max_errors: largest share of questions without a verdict up to which the other
    figures say anything.
    """

    min_accuracy: float | None = None
    min_kappa: float | None = None
    max_attack_success: float | None = None
    max_false_alarms: float | None = None
    max_order_flips: float | None = None
    max_cost: float | None = None
    max_errors: float = 0.05


class Figures(NamedTuple):
    """What was measured."""

    agreement: Agreement | None
    order_flips: OrderFlips | None
    attacks: Attacks | None
    false_alarms: FalseAlarms | None
    errors: Errors
    spending: Spending


def gates_of(limits: Limits, figures: Figures) -> list[Gate]:
    """Every limit that was asked for, with what was measured."""
    agreement, flips = figures.agreement, figures.order_flips
    attacks, alarms = figures.attacks, figures.false_alarms
    gates = [
        _gate("min-accuracy", limits.min_accuracy, agreement.accuracy.value if agreement else None),
        _gate("min-kappa", limits.min_kappa, agreement.kappa.value if agreement else None),
        _gate("max-attack-success", limits.max_attack_success, attacks.success.value if attacks else None),
        _gate("max-false-alarms", limits.max_false_alarms, alarms.alarms.value if alarms else None),
        _gate("max-order-flips", limits.max_order_flips, flips.flips.value if flips else None),
        _cost_gate(limits.max_cost, figures),
    ]
    return [gate for gate in gates if gate is not None]


def _gate(name: str, limit: float | None, value: float | None) -> Gate | None:
    if limit is None:
        return None
    if value is None:
        return Gate(name=name, limit=limit, value=None, met=None)
    met = value >= limit if name.startswith("min-") else value <= limit
    return Gate(name=name, limit=limit, value=value, met=met)


def _cost_gate(limit: float | None, figures: Figures) -> Gate | None:
    """The ceiling is kept by leaving questions out, and then what was asked for would have cost more."""
    gate = _gate("max-cost", limit, figures.spending.usd)
    if gate is not None and figures.errors.left_out:
        return gate.model_copy(update={"met": False})
    return gate


def verdict_of(
    limits: Limits, gates: list[Gate], errors: Errors
) -> tuple[Literal["PASSED", "FAILED", "ERROR"], str]:
    """The verdict and why.

    Too many errors outrank missed gates: the figures are then those of the questions that happened to be
    answered, which are seldom the hard ones.
    """
    if errors.share is None:
        return "ERROR", "nothing was asked"
    if errors.share > limits.max_errors:
        codes = ", ".join(f"{code} {count}" for code, count in errors.codes.items())
        return "ERROR", (
            f"{errors.count} of {errors.asked} questions got no verdict ({codes}); "
            f"more than {limits.max_errors:.1%} make the figures worthless"
        )
    missed = [_sentence(gate, errors) for gate in gates if gate.met is False]
    if missed:
        return "FAILED", "; ".join(missed)
    unmeasured = [gate.name for gate in gates if gate.met is None]
    if unmeasured:
        return "ERROR", f"nothing could be measured for {', '.join(unmeasured)}"
    return "PASSED", "all gates are met" if gates else "no gates were set"


def _sentence(gate: Gate, errors: Errors) -> str:
    if gate.name == "max-cost" and errors.left_out:
        return f"{gate.name} {gate.limit:g} left no room for {errors.left_out} of {errors.asked + errors.left_out} questions"
    return f"{gate.name} {gate.limit:g} is missed: {gate.value:.4g}"
