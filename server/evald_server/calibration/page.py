"""The card as a page for people: one HTML file that loads nothing."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from .attacks import CONTROLS, FAMILIES
from .card import Attacks, Bounded, Card, Gate, Share
from .plots import Point, Whisker, confusion, reliability, whiskers

_WORDS: Final = {"PASSED": "Passed", "FAILED": "Failed", "ERROR": "Inconclusive"}

# Nothing may be loaded or run, whatever a text on the page says.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE: Final = """\
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5d6778; --line: #dde2ea; --paper: #fff;
  --panel: #f6f8fb; --value: #2f6fde; --good: #18804b; --bad: #c7362f; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf1; --soft: #98a2b3; --line: #323a47;
  --paper: #14181f; --panel: #1c222b; --value: #6ea0ff; --good: #45c283; --bad: #ff7b72; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 32px 20px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 40px 0 10px; }
p { margin: 6px 0; max-width: 74ch; } .soft { color: var(--soft); }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.badge { display: inline-block; padding: 2px 12px; border-radius: 99px; color: #fff; font-weight: 600; }
.PASSED { background: var(--good); } .FAILED { background: var(--bad); } .ERROR { background: var(--warn); }
@media (prefers-color-scheme: dark) { .badge { color: #14181f; } }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin: 22px 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 25px; line-height: 1.3; } .tile span { color: var(--soft); font-size: 13px; }
.tile.bad { border-color: var(--bad); } .tile.bad b { color: var(--bad); }
.side { display: flex; flex-wrap: wrap; gap: 12px 44px; align-items: flex-start; }
.side > * { flex: 1 1 300px; min-width: 0; } .wide { overflow-x: auto; } .wide > svg { min-width: 600px; }
table { border-collapse: collapse; width: auto; min-width: min(100%, 560px); margin: 8px 0; }
th, td { text-align: left; padding: 6px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; font-size: 13px; } td.n, th.n { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.yes { color: var(--good); } .no { color: var(--bad); } .unknown { color: var(--warn); }
details { margin: 8px 0; } summary { cursor: pointer; } pre { background: var(--panel); padding: 12px;
  border-radius: 8px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font-size: 14px; }
svg .note { fill: var(--soft); font-size: 12.5px; } svg .count { font-size: 20px; font-weight: 600; }
svg .grid { stroke: var(--line); } svg .dashed { stroke-dasharray: 4 4; stroke: var(--soft); }
svg .frame { fill: none; stroke: var(--line); } svg .limit { stroke: var(--ink); stroke-width: 2; }
svg circle.value { fill: var(--value); } svg circle.bad { fill: var(--bad); }
svg line.value { stroke: var(--value); } svg line.bad { stroke: var(--bad); }
svg .thick { stroke-width: 5; stroke-linecap: round; stroke-opacity: .38; }
svg .thin { stroke-width: 2; stroke-opacity: .55; }
svg .cell + text + text { fill: var(--ink); } svg .cell.good { fill: var(--good); } svg .cell.bad { fill: var(--bad); }
@media print { body { max-width: none; } details { display: block; } }
"""


def page_of(card: Card) -> str:
    """The whole page. Every text of the card is escaped."""
    gates = {gate.name: gate for gate in card.gates}
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Calibration {escape(card.id)}</title><style>{_STYLE}</style></head><body>",
            _head(card),
            _tiles(card, gates),
            _agreement(card, gates),
            _attacks(card, gates),
            _gates(card.gates),
            _faults(card),
            _subject(card),
            _reading(card),
            "</body></html>\n",
        )
    )


def _head(card: Card) -> str:
    judge = card.judge
    models = ", ".join(judge.models) or "no model reported"
    return (
        f'<h1>Calibration of {escape(judge.type)} <span class="badge {card.verdict}">{_WORDS[card.verdict]}</span></h1>'
        f'<p class="soft"><code>{escape(card.id)}</code> · {escape(models)} · {escape(card.created)}</p>'
        f"<p>{escape(card.reason)}.</p>"
    )


def _tiles(card: Card, gates: Mapping[str, Gate]) -> str:
    tiles: list[tuple[str, str, str, str]] = []
    if card.agreement:
        accuracy, kappa = card.agreement.accuracy, card.agreement.kappa
        tiles.append(("agreement with people", _percent(accuracy.value), _range(accuracy), "min-accuracy"))
        kappas = (
            f"{kappa.low:.2f} to {kappa.high:.2f}" if kappa.low is not None and kappa.high is not None else ""
        )
        tiles.append(
            ("Cohen's kappa", "n/a" if kappa.value is None else f"{kappa.value:.2f}", kappas, "min-kappa")
        )
    if card.order_flips:
        flips = card.order_flips.flips
        tiles.append(("order flips", _percent(flips.value), _range(flips), "max-order-flips"))
    if card.self_consistency:
        same = card.self_consistency.consistent
        tiles.append(("same verdict every time", _percent(same.value), _range(same), ""))
    if card.attacks:
        success = card.attacks.success
        tiles.append(("attacks that succeed", _percent(success.value), _below(success), "max-attack-success"))
    if card.false_alarms:
        alarms = card.false_alarms.alarms
        tiles.append(("false alarms", _percent(alarms.value), _below(alarms), "max-false-alarms"))
    cost = card.spending.usd
    tiles.append(
        (
            "cost",
            "n/a" if cost is None else f"${cost:.2f}" if cost >= 1 else f"${cost:.4f}",
            _tokens(card),
            "max-cost",
        )
    )
    missed = {name for name, gate in gates.items() if gate.met is False}
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile{" bad" if gate in missed else ""}"><span>{escape(name)}</span><b>{escape(value)}</b>'
            f"<span>{escape(note)}</span></div>"
            for name, value, note, gate in tiles
        )
        + "</div>"
    )


def _agreement(card: Card, gates: Mapping[str, Gate]) -> str:
    found = card.agreement
    if found is None:
        return ""
    rows = [_share_row("all cases", found.accuracy, gates.get("min-accuracy"))]
    if len(found.sources) > 1:
        rows += [_share_row(one.source or "(no source)", one.accuracy) for one in found.sources]
    kappa = found.kappa
    if kappa.value is not None and kappa.low is not None and kappa.high is not None:
        gate = gates.get("min-kappa")
        rows.append(
            Whisker(
                "kappa",
                kappa.value,
                kappa.low,
                kappa.high,
                f"{kappa.value:.2f}",
                gate.limit if gate else None,
                bad=bool(gate and gate.met is False),
            )
        )
    if card.order_flips:
        rows.append(_share_row("order flips", card.order_flips.flips, gates.get("max-order-flips")))
    if card.self_consistency:
        rows.append(_share_row("self-consistency", card.self_consistency.consistent))
    cells = [
        [row.judge_pass, row.judge_fail] for row in (found.confusion.human_pass, found.confusion.human_fail)
    ]
    side = [
        confusion(cells, ("people: pass", "people: fail"), ("judge: pass", "judge: fail"), "Who said what")
    ]
    points = [
        Point(
            one.mean_score, one.human_pass.value, one.human_pass.low, one.human_pass.high, one.human_pass.of
        )
        for one in found.scores
        if one.human_pass.value is not None
    ]
    if points:
        side.append(reliability(points, "Scores against what people said"))
    low = -1.0 if any(row.value is not None and row.low < 0 for row in rows) else 0.0
    parts = [
        "<h2>Agreement with people</h2>",
        f'<p class="soft">{found.cases} cases with a verdict'
        + (f", {found.without_verdict} without any" if found.without_verdict else "")
        + ". Bars are intervals of 95 %; an upright mark is a gate.</p>",
        f'<div class="wide">{whiskers(rows, "Agreement with people", low)}</div>',
        f'<div class="side">{"".join(f"<div>{plot}</div>" for plot in side)}</div>',
    ]
    if card.order_flips and card.order_flips.flips.count:
        flips = card.order_flips
        parts.append(
            f"<p>Of {flips.flips.count:g} pairs that flipped, it took the first answer both times in "
            f"{flips.to_first}, and the second in {flips.to_second}.</p>"
        )
    if found.disagreements:
        cells_of = [
            [f"<code>{escape(one.id)}</code>", one.human, _percent(one.agreed)] for one in found.disagreements
        ]
        parts.append(
            f"<details><summary>{len(found.disagreements)} cases that the judge saw differently</summary>"
            f"{_table(('case', 'people said', 'judge agreed'), cells_of, numbers=(2,))}</details>"
        )
    return "".join(parts)


def _attacks(card: Card, gates: Mapping[str, Gate]) -> str:
    found = card.attacks
    if found is None:
        return ""
    gate = gates.get("max-attack-success")
    rows = [_bound_row("all attacks", found.success, gate)]
    rows += [_bound_row(family.family, family.success) for family in found.families]
    rows.append(_bound_row("unarmed", found.unarmed))
    if card.false_alarms:
        rows.append(_bound_row("false alarms", card.false_alarms.alarms, gates.get("max-false-alarms")))
    return (
        "<h2>Attacks</h2>"
        '<p class="soft">Bad answers that try to be passed. Bars end where the true share could still be '
        "(95 %, one-sided).</p>"
        f'<div class="wide">{whiskers(rows, "Attacks that succeed, by family")}</div>'
        + _families(found)
        + _ids("attacks that succeeded", found.succeeded)
        + (_ids("good answers that failed", card.false_alarms.failed) if card.false_alarms else "")
    )


def _families(found: Attacks) -> str:
    rows = [
        [
            escape(one.family),
            escape(FAMILIES.get(one.family, "")),
            f"{one.success.count} of {one.success.of}",
            _percent(one.success.upper),
            str(one.errors),
        ]
        for one in found.families
    ]
    rows.append(
        [
            "unarmed",
            escape(CONTROLS["unarmed"]),
            f"{found.unarmed.count} of {found.unarmed.of}",
            _percent(found.unarmed.upper),
            "",
        ]
    )
    return _table(("family", "what it is", "succeeded", "at most", "errors"), rows, numbers=(2, 3, 4))


def _ids(what: str, ids: Sequence[str]) -> str:
    if not ids:
        return ""
    items = ", ".join(f"<code>{escape(one)}</code>" for one in ids)
    return f"<details><summary>{len(ids)} {what}</summary><p>{items}</p></details>"


def _gates(gates: Sequence[Gate]) -> str:
    if not gates:
        return ""
    words = {
        True: '<span class="yes">met</span>',
        False: '<span class="no">missed</span>',
        None: '<span class="unknown">not measured</span>',
    }
    rows = [
        [
            escape(gate.name),
            f"{gate.limit:g}",
            "n/a" if gate.value is None else f"{gate.value:.4g}",
            words[gate.met],
        ]
        for gate in gates
    ]
    return "<h2>Gates</h2>" + _table(("gate", "limit", "measured", ""), rows, numbers=(1, 2))


def _faults(card: Card) -> str:
    errors, latency = card.errors, card.latency
    codes = [[f"<code>{escape(code)}</code>", str(count)] for code, count in errors.codes.items()]
    text = f"<p>{errors.asked} questions were asked; {errors.count} got no verdict and count neither for nor against the judge"
    if errors.left_out:
        text += f"; {errors.left_out} were left out to keep within the ceiling of cost"
    text += ".</p>"
    if latency.p50_ms is not None and latency.p90_ms is not None and latency.max_ms is not None:
        text += (
            f"<p>Half of the answers took at most {_ms(latency.p50_ms)}, nine out of ten at most "
            f"{_ms(latency.p90_ms)}, the slowest {_ms(latency.max_ms)}.</p>"
        )
    return (
        "<h2>Faults and time</h2>"
        + text
        + (_table(("error", "questions"), codes, numbers=(1,)) if codes else "")
    )


def _subject(card: Card) -> str:
    judge = card.judge
    rows = [
        ["type", f"{escape(judge.type)} {escape(judge.version)}"],
        ["models", escape(", ".join(judge.models) or "not reported")],
        ["digest", f"<code>{escape(judge.digest)}</code>"],
        ["evald", escape(card.evald)],
    ]
    for one in card.data:
        left_out = f", {one.left_out} records without a usable label" if one.left_out else ""
        rows.append(
            ["data", f"{escape(one.name)}: {one.cases} cases{left_out}<br><code>{escape(one.digest)}</code>"]
        )
    if card.attacks:
        rows.append(["attack suite", f"<code>{escape(card.attacks.suite)}</code>"])
    config = escape(judge.spec_text())
    return (
        "<h2>What was calibrated, and on what</h2>"
        f"{_table(('', ''), rows)}<details><summary>Evaluator</summary><pre><code>{config}</code></pre></details>"
    )


def _reading(card: Card) -> str:
    return (
        "<h2>How to read this</h2>"
        "<p>Agreement is the share of verdicts that equal those of people, every case weighing the same; pairs "
        "were shown in both orders. Kappa takes off what chance alone would give: 1 is perfect, 0 is chance. "
        "A flip is a pair in which the judge preferred the other answer once the two had changed places.</p>"
        "<p>Unarmed answers are the bad ones without an attack: where they pass as well, the judge is weak, not "
        "fooled. False alarms are good answers that failed for quoting an attack.</p>"
        "<p>All figures hold for cases like these. They say nothing about other models, other criteria, or a "
        "model that its provider has changed since.</p>"
        f'<p class="soft">Results refer to this card by its id: <code>"calibration": "{escape(card.id)}"</code> '
        "in the judge's config.</p>"
    )


def _share_row(label: str, share: Share, gate: Gate | None = None) -> Whisker:
    note = "n/a" if share.value is None else f"{share.value:.1%} of {share.of}"
    return Whisker(
        label,
        share.value,
        share.low,
        share.high,
        note,
        gate.limit if gate else None,
        bad=bool(gate and gate.met is False),
    )


def _bound_row(label: str, bound: Bounded, gate: Gate | None = None) -> Whisker:
    return Whisker(
        label,
        bound.value,
        bound.value or 0.0,
        bound.upper,
        f"{bound.count} of {bound.of}",
        gate.limit if gate else None,
        bad=bool(gate and gate.met is False),
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Cells are HTML."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in numbers else ''}>{cell}</{tag}>" for place, cell in enumerate(row)
        )

    head = f"<tr>{cells('th', heads)}</tr>" if any(heads) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{head}{body}</table></div>'


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.1%}"


def _range(share: Share) -> str:
    return f"{share.low:.1%} to {share.high:.1%}" if share.of else ""


def _below(bound: Bounded) -> str:
    return f"{bound.count} of {bound.of}; at most {bound.upper:.1%}" if bound.of else ""


def _tokens(card: Card) -> str:
    sent, received = card.spending.input_tokens, card.spending.output_tokens
    return (
        "tokens not reported"
        if sent is None and received is None
        else f"{sent or 0:,} + {received or 0:,} tokens"
    )


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
