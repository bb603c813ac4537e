"""Every rule finds the plugin that breaks it, and finds nothing wrong with any other one."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import grpc
import pytest

import evald
import evald_server.testing
from evald.credentials import server_credentials
from evald.plugin.v1.task_pb2 import EvaluationTask, PluginInfo
from evald.v1.context_pb2 import EvaluatorContext
from evald.v1.evaluator_pb2 import EvaluatorType, MetricDescriptor
from evald_server.conformance.checks import RULES
from evald_server.conformance.link import Mode
from evald_server.conformance.report import ConformanceReport, RuleOutcome
from evald_server.conformance.rules import ContractRule, NotTestable, RuleBroken, Severity, Timeouts, Trial
from evald_server.conformance.session_link import SessionLink
from evald_server.conformance.suite import UnknownSample, check
from evald_server.conformance.target_link import TargetLink
from evald_server.dev_certificates import make_certificates
from evald_server.remote.errors import ContractError, Refusal
from evald_server.remote.evaluator import read_output
from evald_server.remote.plugin_type import read_plugin
from tests.thorough import first_of

from ..loop import run
from ..worker.evaluators import Sleepy, length
from .plugins import SLOW_SECONDS, Plugin, dialling, listening

# As short as a busy machine allows; and for plugins of which nothing is expected to take its time.
QUICK = Timeouts(short=0.5, notice=1.5, grace=2.0, away=0.2, back=3.0)
PATIENT = Timeouts(short=1.0, notice=5.0, grace=5.0, away=0.2, back=10.0)
SLOW = ("acme.check", {"seconds": SLOW_SECONDS})
# Plugins that are tried side by side: they mostly wait, but have to be answered in time.
AT_ONCE = 12

# Only for these, because certificates take openssl a while.
OF_TLS = ("EV70", "EV71")


class Certificates(NamedTuple):
    """What the one side shows that listens, and the one that dials; each requires a certificate of the other."""

    listens: evald.Tls
    dials: evald.Tls


@pytest.fixture(scope="module", name="certificates")
def _certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"], days=1)
    return Certificates(
        *(
            evald.Tls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
            for name in ("server", "client")
        )
    )


async def report_on(
    plugin: Plugin,
    mode: Mode,
    slow: tuple[str, Mapping[str, Any]] | None = SLOW,
    timeouts: Timeouts = QUICK,
    tls: Certificates | None = None,
    **configs: Any,
) -> ConformanceReport:
    listens, dials = tls or (None, None)
    if mode == "target":
        async with listening(plugin, listens) as address:
            target = TargetLink(address, dials)
            try:
                return await check(await target.open(), configs, slow, timeouts=timeouts)
            finally:
                await target.close()
    session = SessionLink("127.0.0.1:0", listens)
    await session.open()
    try:
        async with dialling(plugin, session.address, dials):
            await session.arrived(10)
            return await check(session, configs, slow, timeouts=timeouts)
    finally:
        await session.close()


def unmet(report: ConformanceReport) -> list[tuple[str, str, str]]:
    """What does not hold, besides the rules that need TLS where there is none, or that another one hides."""
    return [
        (finding.rule.number, finding.outcome.value, finding.text)
        for finding in report.findings
        if finding.outcome is not RuleOutcome.PASSED
        and "give --cert and --key" not in finding.text
        and "mend that first" not in finding.text
    ]


@pytest.mark.parametrize("mode", ["target", "connect"])
def test_a_plugin_that_breaks_nothing_passes_every_rule(mode: Mode, certificates: Certificates) -> None:
    report = run(report_on(Plugin(), mode, timeouts=PATIENT, tls=certificates))
    assert unmet(report) == []
    assert report.count(RuleOutcome.PASSED) == len(report.findings)


@pytest.mark.parametrize("mode", ["target", "connect"])
def test_without_tls_its_rules_are_not_tried_and_say_what_is_needed(mode: Mode) -> None:
    report = run(report_on(Plugin(), mode, timeouts=PATIENT))
    left = [finding for finding in report.findings if finding.outcome is not RuleOutcome.PASSED]
    assert [(finding.rule.number, finding.outcome.value) for finding in left] == [
        ("EV71" if mode == "target" else "EV70", "not_shown")
    ]
    assert "give --cert and --key" in left[0].text


@pytest.mark.parametrize("mode", ["target", "connect"])
@pytest.mark.parametrize("places", [1, 3])
def test_no_more_is_asked_of_a_plugin_than_it_claims(mode: Mode, places: int) -> None:
    plugin = Plugin(places=places, strict=True)
    # Time and cancelling are left out: what is tried for them takes its places on purpose.
    report = run(report_on(plugin, mode, slow=None, timeouts=PATIENT))
    numbers = [number for number, _, _ in unmet(report)]
    assert numbers == ["EV40", "EV41", "EV42"], unmet(report)


async def _reports(numbers: list[str], mode: Mode, certificates: Certificates) -> list[ConformanceReport]:
    """What the kit says of the plugins that break these rules, tried side by side."""
    places = asyncio.Semaphore(AT_ONCE)

    async def report(number: str) -> ConformanceReport:
        async with places:
            return await report_on(Plugin(number), mode, tls=certificates if number in OF_TLS else None)

    return await asyncio.gather(*map(report, numbers))


def _is_that_of(rule: ContractRule, report: ConformanceReport) -> bool:
    """Whether a report says that this rule is broken, how, and that no other one is."""
    outcome = "failed" if rule.severity is Severity.MUST else "warning"
    found = unmet(report)
    return (
        [one[:2] for one in found] == [(rule.number, outcome)]
        and found[0][2] != ""
        and report.passed is (rule.severity is Severity.SHOULD)
    )


@pytest.mark.parametrize("mode", first_of(["target", "connect"], 1))
def test_a_plugin_that_breaks_one_rule_breaks_no_other(mode: Mode, certificates: Certificates) -> None:
    rules = [rule for rule in RULES if mode in rule.modes]
    # One test of them all: they mostly wait, and one after the other they would do so for minutes.
    reports = run(_reports([rule.number for rule in rules], mode, certificates))
    wrong = {
        rule.number: (report.passed, unmet(report))
        for rule, report in zip(rules, reports, strict=True)
        if not _is_that_of(rule, report)
    }
    assert wrong == {}


_MUST = [rule.number for rule in RULES if rule.severity is Severity.MUST]


@pytest.mark.parametrize("number", [one for one in _MUST if one <= "EV14" and one not in ("EV12", "EV13")])
def test_a_server_refuses_what_breaks_a_rule_of_the_description(number: str) -> None:
    read_plugin(Plugin().info())
    with pytest.raises(Refusal):
        read_plugin(Plugin(number).info())


@pytest.mark.parametrize("number", [one for one in _MUST if one >= "EV80"])
def test_a_server_refuses_what_breaks_a_rule_of_the_outputs(number: str) -> None:
    def read(breaks: str) -> None:
        context = EvaluatorContext()
        context.messages.add(role="assistant")
        for name, kind in (("acme.check", evald.ASSERTION), ("acme.count", evald.METRIC)):
            task = EvaluationTask(type=name, context=context)
            read_output(run(Plugin(breaks).output(task)), kind)

    read("")
    with pytest.raises(ContractError):
        read(number)


# What a server refuses, with the rule that says so. The value changes the description of the plugin, or of its metric.
_REFUSED = [
    pytest.param("EV14", lambda info: info.evaluator_types.extend(_types(99)), id="types"),
    pytest.param("EV14", lambda info: info.evaluator_types.extend(_types(9, 60_000)), id="bytes"),
    pytest.param("EV14", lambda info: setattr(info, "name", "x" * 201), id="name"),
    pytest.param("EV14", lambda info: setattr(info, "version", "1" * 201), id="version"),
    pytest.param("EV14", lambda info: setattr(info, "sdk", "bell\a"), id="control character"),
    pytest.param("EV14", lambda info: setattr(_last(info), "version", "v 1"), id="version of a type"),
    pytest.param("EV14", lambda info: setattr(_last(info), "label", "x" * 201), id="label"),
    pytest.param("EV11", lambda info: setattr(_last(info).metric, "unit", "x" * 64), id="unit"),
    pytest.param(
        "EV11",
        lambda info: _last(info).metric.MergeFrom(MetricDescriptor(minimum=2, maximum=1)),
        id="minimum above maximum",
    ),
    *(
        pytest.param(rule, lambda info, text=text: setattr(_last(info), "config_schema_json", text), id=name)
        for rule, name, text in (
            ("EV08", "length of a schema", json.dumps({"description": "x" * 65_536})),
            ("EV08", "subschemas", json.dumps({"properties": {f"p{n}": {} for n in range(1001)}})),
            ("EV08", "look-around", json.dumps({"properties": {"a": {"pattern": "(?=a)"}}})),
            ("EV08", "draft", json.dumps({"$schema": "http://json-schema.org/draft-03/schema#"})),
            ("EV08", "same key twice", '{"type": "object", "type": "object"}'),
            ("EV08", "schema of a list", '{"type": "array"}'),
            ("EV08", "dynamic reference", '{"$dynamicRef": "#a"}'),
        )
    ),
]


def _types(count: int, size: int = 0) -> list[EvaluatorType]:
    schema = json.dumps({"description": "x" * size})
    return [EvaluatorType(type=f"acme.t{n}", kind=1, config_schema_json=schema) for n in range(count)]


def _last(info: PluginInfo) -> EvaluatorType:
    return info.evaluator_types[-1]


async def _broken(info: PluginInfo) -> list[str]:
    """The rules of a description that do not hold, without advice."""
    link = SessionLink("127.0.0.1:0")
    link.info = info
    broken = []
    for one in RULES:
        if one.number <= "EV14" and "connect" in one.modes and one.severity is Severity.MUST:
            try:
                await one.check(Trial(link, [], None))
            except RuleBroken:
                broken.append(one.number)
            except NotTestable:
                assert broken
    return broken


@pytest.mark.parametrize(("number", "change"), _REFUSED)
def test_what_a_server_refuses_breaks_a_rule(number: str, change: Callable[[PluginInfo], object]) -> None:
    info = Plugin().info()
    change(info)
    with pytest.raises(Refusal) as refused:
        read_plugin(info)
    assert run(_broken(info)) == [number]
    # Its author does not know the index.
    assert ("evaluator_types[" in refused.value.metadata["field"]) is (
        '"acme.count"' in refused.value.message
    )


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param('{"type": "object"}' + " " * 70_000, id="spaces are not counted"),
        pytest.param('{"type": ["object", "null"]}', id="object among others"),
        pytest.param(
            '{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"items": [{}]}}}',
            id="older draft",
        ),
        pytest.param('{"const": {"$ref": "https://schemas.example/a.json"}}', id="not a reference"),
    ],
)
def test_what_a_server_accepts_breaks_no_rule(schema: str) -> None:
    info = Plugin().info()
    _last(info).config_schema_json = schema
    _last(info).aliases.append("Not A Type")
    read_plugin(info)
    assert run(_broken(info)) == []


def test_no_type_may_have_the_name_of_one_of_the_servers_own() -> None:
    with evald_server.testing.server() as server, server.client() as client:
        names = {name for found in client.evaluator_types() for name in (found.type, *found.aliases)}
    info = Plugin().info()
    for name in names:
        _last(info).type = name
        assert run(_broken(info)) == ["EV14"], name


@pytest.mark.parametrize("mode", ["target", "connect"])
def test_the_sdk_passes_every_rule(mode: Mode, certificates: Certificates) -> None:
    listens, dials = certificates

    async def main() -> ConformanceReport:
        slow = ("acme.sleepy", {"seconds": 30})
        if mode == "target":
            async with evald.ListeningWorker(
                Sleepy, length, listen_credentials=server_credentials(listens)
            ) as worker:
                target = TargetLink(worker.address, dials)
                try:
                    return await check(await target.open(), {}, slow, timeouts=PATIENT)
                finally:
                    await target.close()
        session = SessionLink("127.0.0.1:0", listens, "the-token")
        await session.open()
        try:
            async with evald.DiallingWorker(
                Sleepy, length, server=session.address, tls=dials, token="the-token"
            ):
                await session.arrived(10)
                return await check(session, {}, slow, timeouts=PATIENT)
        finally:
            await session.close()

    report = run(main())
    assert unmet(report) == []
    assert report.count(RuleOutcome.PASSED) == len(report.findings)


def test_numbers_are_unique_and_in_order() -> None:
    numbers = [rule.number for rule in RULES]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("mode", ["target", "connect"])
def test_what_cannot_be_tried_says_what_is_needed(mode: Mode) -> None:
    report = run(report_on(Plugin(), mode, slow=None, timeouts=PATIENT))
    assert [found[:2] for found in unmet(report)] == [(f"EV4{n}", "not_shown") for n in range(3)]
    assert all("--slow TYPE=JSON" in text for _, _, text in unmet(report))
    assert report.passed


def test_a_slow_config_that_is_not_slow_shows_nothing() -> None:
    report = run(report_on(Plugin(), "target", slow=("acme.check", {})))
    assert all("is not slow with that config" in text for _, _, text in unmet(report))
    assert len(unmet(report)) == 3


def test_a_config_for_a_type_that_is_not_offered_is_refused() -> None:
    with pytest.raises(UnknownSample, match=r"acme\.check, acme\.count"):
        run(report_on(Plugin(), "target", **{"acme.other": {}}))


def test_a_plugin_that_dies_leaves_the_rest_untried() -> None:
    report = run(report_on(Plugin("death"), "connect"))
    assert unmet(report)[0][:2] == ("EV25", "failed")
    untried = [found for found in unmet(report)[1:] if "not answered since rule EV25" in found[2]]
    looking_back = [rule.number for rule in RULES if rule.looks_back]
    assert unmet(report)[1:] == untried
    assert len(untried) > 10
    assert not set(looking_back) & {number for number, *_ in untried}


def test_a_first_frame_that_cannot_be_parsed_is_no_hello() -> None:
    async def main() -> None:
        link = SessionLink("127.0.0.1:0")
        await link.open()
        try:
            async with grpc.aio.insecure_channel(link.address) as channel:
                connect: Any = channel.stream_stream("/evald.plugin.v1.RegistryService/Attach")
                await connect().write(b"\xff\xff")
                await link.arrived(30)
                [begins] = [rule for rule in RULES if rule.number == "EV60"]
                with pytest.raises(RuleBroken, match="the first frame is not hello"):
                    await begins.check(Trial(link, [], None))
        finally:
            await link.close()

    run(main())
