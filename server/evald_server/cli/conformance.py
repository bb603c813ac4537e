"""`evald conformance`: check a plugin, in any language, against every rule of the contract."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from evald.strict_json import TooLarge, parse_json

from .console import err, new_table, say, show
from .exit_codes import CommandError, ExitCode, usage_error
from .report_files import check_output_file, write_file
from .sanitize import clean, print_json

if TYPE_CHECKING:
    from evald import Tls
    from evald_server.conformance.link import Link
    from evald_server.conformance.report import ConformanceReport
    from evald_server.conformance.rules import ContractRule

_MARKS: Final = {
    "passed": ("✓ holds", "green"),
    "failed": ("✗ broken", "red"),
    "warning": ("! should", "yellow"),
    "not_shown": ("- not tested", "dim"),
}


def run(args: argparse.Namespace) -> int:
    """Check a plugin."""
    if bool(args.target) is bool(args.attach):
        raise usage_error(
            "wanted either --target or --attach",
            "use --target HOST:PORT for a plugin that listens, --attach for a plugin that dials out",
        )
    if args.junit:
        check_output_file("--junit", args.junit)
    configs = dict(_sample(text, "--config") for text in args.configs)
    slow = _sample(args.slow, "--slow") if args.slow else None
    report = asyncio.run(_check(args, configs, slow))

    from evald_server.conformance.report import to_dict, to_junit

    if args.junit:
        write_file(args.junit, lambda stream: stream.write(to_junit(report)))
    if args.json:
        print_json(to_dict(report), indent=2)
    else:
        _print(report)
    return ExitCode.PASSED if report.passed else ExitCode.FAILED


async def _check(
    args: argparse.Namespace, configs: dict[str, dict[str, Any]], slow: tuple[str, dict[str, Any]] | None
) -> "ConformanceReport":
    from evald_server.conformance.link import PluginGone
    from evald_server.conformance.suite import UnknownSample, check

    try:
        async with _link(args) as link:
            with err().status("checking ...") as status:

                def tell(rule: "ContractRule") -> None:
                    status.update(f"{rule.number} {rule.sentence}")

                return await check(link, configs, slow, tell)
    except PluginGone as problem:
        raise CommandError(ExitCode.UNREACHABLE, str(problem), "is the plugin running?") from None
    except UnknownSample as problem:
        raise usage_error(str(problem)) from None


@asynccontextmanager
async def _link(args: argparse.Namespace) -> "AsyncIterator[Link]":
    from evald_server.conformance.session_link import SessionLink
    from evald_server.conformance.target_link import TargetLink

    tls = _tls(args)
    if args.target:
        try:
            target = TargetLink(args.target, tls)
        except ValueError as problem:
            raise usage_error(str(problem)) from None
        try:
            yield await target.open(args.wait or 10.0)
        finally:
            await target.close()
        return
    token = _token(args.token_file) if args.token_file else ""
    if tls is not None and token:
        # The key says who the plugin is: it needs no certificate, as on a server.
        tls = replace(tls, ca=None)
    session = SessionLink(args.listen or "127.0.0.1:50051", tls, token)
    try:
        await session.open()
    except ValueError as problem:
        raise usage_error(str(problem)) from None
    except OSError as problem:
        raise usage_error(f"--listen {problem}", "port 0 picks a free one") from None
    try:
        err().print(f"waiting for a plugin to dial {session.address}", soft_wrap=True)
        await session.arrived(args.wait or 60.0)
        yield session
    finally:
        await session.close()


def _tls(args: argparse.Namespace) -> "Tls | None":
    """Return the TLS files of the options; None for plaintext. Raises CommandError for conflicting options."""
    from evald import Tls

    if args.target and args.listen:
        raise usage_error("--listen needs --attach: it is the address that the plugin dials")
    if args.target and args.token_file:
        raise usage_error("--token-file needs --attach: evald sends no key to a plugin that listens")
    if not (args.tls or args.ca or args.cert or args.key):
        return None
    if bool(args.cert) is not bool(args.key):
        raise usage_error("got only one of --cert and --key, wanted both or neither")
    if args.attach and not args.cert:
        raise usage_error(
            "--attach with TLS needs --cert and --key, the certificate of the server",
            "evald certs dev makes test certificates",
        )
    return Tls(args.ca, args.cert, args.key)


def _token(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "is not ASCII text"
        raise usage_error(f"--token-file {file}: {why}") from None
    if not text:
        raise usage_error(f"--token-file {file}: is empty")
    return text


def _sample(text: str, option: str) -> tuple[str, dict[str, Any]]:
    """Parse TYPE=JSON into type and config. Raises CommandError."""
    name, equals, config = text.partition("=")
    try:
        data = parse_json(config) if equals else None
    except (ValueError, TooLarge) as problem:
        raise usage_error(f"{option} {name}: {problem}") from None
    if not name or not isinstance(data, dict):
        raise usage_error(
            f"{option}: got {text[:80]!r}, wanted TYPE=JSON",
            f"""for example {option} 'acme.pii-leak={{"kinds": ["iban"]}}'""",
        )
    return name, data


def _print(report: "ConformanceReport") -> None:
    info = report.info
    types = ", ".join(clean(found.type, 70) for found in info.evaluator_types)
    say(
        (clean(f"{info.name} {info.version}", 100), "bold"),
        f" ({'dials out' if report.mode == 'connect' else 'listens'}) offers {types}",
    )
    show(_table(report))
    counts = dict.fromkeys(_MARKS, 0)
    for finding in report.findings:
        counts[finding.outcome.value] += 1
    say(
        ("PASSED", "bold green") if report.passed else ("FAILED", "bold red"),
        f"  {counts['passed']} rules hold, {counts['failed']} are broken, {counts['warning']} should hold, "
        f"{counts['not_shown']} were not tested",
    )


def _table(report: "ConformanceReport") -> Table:
    table = new_table("Rule", "Result", "Requirement")
    for finding in report.findings:
        text = Text(finding.rule.sentence)
        if finding.text:
            text.append(f"\n{clean(finding.text, 500)}", _MARKS[finding.outcome.value][1])
        table.add_row(finding.rule.number, Text(*_MARKS[finding.outcome.value]), text)
    return table
