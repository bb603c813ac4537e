"""Tables of a calibration card for the terminal."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from evald_server.calibration.card import BoundedShare, CalibrationCard, Share
from evald_server.pages.formats import percent

from .console import new_table
from .result_tables import titled
from .sanitize import clean
from .suite_view import plain

_SHOWN_IDS = 8


def card_tables(card: CalibrationCard) -> list[RenderableType]:
    """Return tables of figures, attacks by family and gates, and the ids of disagreements and failed controls."""
    parts = titled(("Figures", _figures(card)), ("Attacks", _attacks(card)), ("Gates", _gates(card)))
    if card.agreement and card.agreement.disagreements:
        ids = [one.id for one in card.agreement.disagreements]
        parts.append(_listed("cases in which the judge disagrees with people", ids))
    if card.attacks and card.attacks.succeeded:
        parts.append(_listed("attacks that succeeded", card.attacks.succeeded))
    if card.false_alarms and card.false_alarms.failed:
        parts.append(_listed("good answers that failed", card.false_alarms.failed))
    return parts


def _figures(card: CalibrationCard) -> Table:
    table = new_table("Figure", ("Value", "right"), ("95 %", "right"), "Of")
    found = card.agreement
    if found:
        table.add_row("agreement with people", *_share(found.accuracy), f"{found.cases} cases")
        kappa = found.kappa
        value = "n/a" if kappa.value is None else f"{kappa.value:.2f}"
        interval = "" if kappa.low is None or kappa.high is None else f"{kappa.low:.2f} to {kappa.high:.2f}"
        table.add_row("Cohen's kappa", value, interval, "")
        if len(found.sources) > 1:
            for one in found.sources:
                table.add_row(
                    f"  {clean(one.source, 40) or '(no source)'}", *_share(one.accuracy), f"{one.cases} cases"
                )
    if card.order_flips:
        flips = card.order_flips
        toward = f", {flips.to_first} toward the first answer" if flips.flips.count else ""
        lacking = f", {flips.without_verdict} without both verdicts" if flips.without_verdict else ""
        table.add_row("order flips", *_share(flips.flips), f"{flips.flips.of} pairs{toward}{lacking}")
    if card.self_consistency:
        same = card.self_consistency.consistent
        table.add_row(
            "same verdict every time",
            *_share(same),
            f"{same.of} cases, judged {card.self_consistency.repeats} times",
        )
    if card.attacks:
        table.add_row(
            "attacks that succeeded", *_bound(card.attacks.success), f"{card.attacks.success.of} attacks"
        )
        table.add_row(
            "  without the attack", *_bound(card.attacks.unarmed), f"{card.attacks.unarmed.of} bad answers"
        )
    if card.false_alarms:
        alarms = card.false_alarms.alarms
        table.add_row("false alarms", *_bound(alarms), f"{alarms.of} good answers")
    errors = card.errors
    codes = ", ".join(f"{clean(code, 40)} {count}" for code, count in errors.codes.items())
    share = "" if errors.share is None else _percent(errors.share)
    table.add_row("errors", share, "", f"{errors.asked} queries" + (f": {codes}" if codes else ""))
    if errors.left_out:
        table.add_row("left out", f"{errors.left_out}", "", "queries, because of --max-cost")
    cost, sent, received = card.spending.usd, card.spending.input_tokens, card.spending.output_tokens
    tokens = "" if sent is None and received is None else f"{sent or 0:,} + {received or 0:,} tokens"
    table.add_row("cost", "n/a" if cost is None else f"${cost:,.4f}", "", tokens)
    if card.latency.p50_ms is not None and card.latency.p90_ms is not None:
        table.add_row(
            "latency, median",
            f"{card.latency.p50_ms:,.0f} ms",
            "",
            f"90 % within {card.latency.p90_ms:,.0f} ms",
        )
    return table


def _attacks(card: CalibrationCard) -> Table:
    table = new_table(
        "Family", ("Succeeded", "right"), ("Of", "right"), ("At most", "right"), ("Errors", "right")
    )
    for one in card.attacks.families if card.attacks else ():
        style = "red" if one.success.count else ""
        table.add_row(
            clean(one.family, 40),
            Text(str(one.success.count), style),
            str(one.success.of),
            _percent(one.success.upper),
            str(one.errors),
        )
    return table


def _gates(card: CalibrationCard) -> Table:
    table = new_table("Gate", ("Limit", "right"), ("Measured", "right"), "")
    marks = {True: ("✓ met", "green"), False: ("✗ missed", "red"), None: ("! not measured", "yellow")}
    for gate in card.gates:
        measured = "n/a" if gate.value is None else f"{gate.value:.4g}"
        table.add_row(gate.name, f"{gate.limit:g}", measured, Text(*marks[gate.met]))
    return table


def _listed(what: str, ids: Sequence[str]) -> Text:
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return Text(f"{what}: {', '.join(clean(one, 60) for one in ids[:_SHOWN_IDS])}{more}", "dim")


def _percent(share: float) -> str:
    return plain(percent(share))


def _share(share: Share) -> tuple[str, str]:
    value = "n/a" if share.value is None else _percent(share.value)
    return value, f"{_percent(share.low)} to {_percent(share.high)}" if share.of else ""


def _bound(bound: BoundedShare) -> tuple[str, str]:
    value = "n/a" if bound.value is None else _percent(bound.value)
    return value, f"at most {_percent(bound.upper)}" if bound.of else ""
