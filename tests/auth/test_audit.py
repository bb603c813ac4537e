"""Whatever callers are called, a line of the audit log says what it says."""

import json
import logging
import shlex
from pathlib import Path

import pytest

from evald_server.auth.audit import Audit, record
from evald_server.auth.principal import Principal, Role
from evald_server.logs import JsonFormatter, TextFormatter

from ..rpc.live import CONTAINS, request, serving
from .issuer import Issuer
from .keyring import bearer

HOSTILE = [
    "alice key=boss outcome=ok",
    'alice" principal="boss',
    "alice\n2026-11-22 12:00:00 INFO evald.audit: refused principal=boss",
    "alice\r\x1b[2Kboss",
    "alice\u2028refused principal=boss",
    "alice\u202eboss",
    "alice\u00a0boss",
]


@pytest.mark.parametrize("name", [*HOSTILE, "jwt:alice", "jwt:jürgen@example.org", ""])
def test_a_name_is_one_field_of_one_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    principal = Principal(f"jwt:{name}", frozenset((Role.CALLER,)), key_id=name)
    with caplog.at_level(logging.INFO, "evald.audit"):
        record("refused", principal, method="/a/B", why="wrong role", left_out=3)
    [line] = caplog.records
    entry = json.loads(JsonFormatter().format(line))
    assert (entry["principal"], entry["key_id"], entry["outcome"]) == (f"jwt:{name}", name, "refused")
    text = TextFormatter().format(line)
    assert len(text.splitlines()) == len(JsonFormatter().format(line).splitlines()) == 1
    fields = [word.partition("=")[0] for word in shlex.split(text.partition("evald.audit: ")[2])]
    assert fields == ["refused", "principal", "key", "method", "why", "left_out"]


async def test_the_subject_of_a_token_forges_no_field(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("one")
    issuer.publish()
    with caplog.at_level(logging.INFO, "evald.audit"):
        async with serving(**issuer.settings) as live:
            token = issuer.token(sub="alice key=boss")
            assert (await live.unary(request(CONTAINS), metadata=bearer(token))).summary.success
    assert 'used principal="jwt:alice key=boss" key=' in caplog.text


def test_refusals_are_logged_again_after_a_second_in_which_too_many_addresses_were_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1.0
    audit = Audit(lambda: now)
    caplog.set_level(logging.INFO, "evald.audit")
    for number in range(2000):
        audit.refused("/x/y", f"ipv4:10.0.{number // 256}.{number % 256}:1", "INVALID", "why", None)
    logged = len(caplog.records)
    now = 2.0
    audit.refused("/x/y", "ipv4:10.0.0.1:1", "INVALID", "why", None)
    assert (logged, len(caplog.records)) == (1000, 1001)
