"""No setting, file or argument that is wrong has `evald` repeat the secret that is in it."""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from evald_server.connectors.http_document import fetch_document

from ..cli.conftest import evald  # noqa: F401 - a fixture
from ..markers import Markers
from .authority import Authority

SERVE = ("serve", "--listen", "127.0.0.1:0", "--http", "")


class Fault(NamedTuple):
    """Something wrong with {secret} in it. says: a part of the error, so that it is the one that is meant.

    config, keys: contents of the config file and of the file of keys. arguments: of another command than `serve`.
    """

    says: str
    environment: Mapping[str, str] = MappingProxyType({})
    config: str = ""
    keys: str = ""
    arguments: tuple[str, ...] = ()


KEY = '[keys.abcdefghijkl]\nprincipal = "ops"\nroles = ["admin"]\ncreated = 2026-01-01T00:00:00Z\n'
POSTGRES = "postgresql://evald:"
FAULTS = {
    "keys: broken": Fault("not a TOML file", keys='[keys.abcdefghijkl]\ndigest = "{secret}'),
    "keys: no digest": Fault("digest: wanted", keys=KEY + 'digest = "{secret}"'),
    "keys: unknown field": Fault("unknown; known keys:", keys=KEY + 'digest = "0"\nkey = "{secret}"'),
    "keys: no table": Fault("wanted tables", keys='keys = ["{secret}"]'),
    "config: broken": Fault("not valid TOML", config='judge_api_key = "{secret}'),
    "config: a list": Fault("judge_api_key", config='judge_api_key = ["{secret}"]'),
    "config: misspelled": Fault("unknown setting", config='judge_apikey = "{secret}"'),
    "config: a judge's": Fault("unknown key", config='[judges.a]\napiKey = "{secret}"'),
    "config: no name": Fault("api_key_env", config='[judges.a]\nmodel = "m"\napiKeyEnv = "{secret}"'),
    "config: no names": Fault("connector_secrets", config='connector_secrets = ["{secret}", 3]'),
    "environment: misspelled": Fault("EVALD_JUDGE_APIKEY", {"EVALD_JUDGE_APIKEY": "{secret}"}),
    "environment: broken": Fault("not valid JSON", {"EVALD_JUDGES": '{"a": {"key": "{secret}"'}),
    "environment: a script's": Fault("CODE_ENVIRONMENT", {"EVALD_CODE_ENVIRONMENT": "={secret}"}),
    "judge: user": Fault("without user", {"EVALD_JUDGE_BASE_URL": "https://u:{secret}@127.0.0.1/v1"}),
    "judge: query": Fault(
        "looks like a secret", {"EVALD_JUDGE_BASE_URL": "https://127.0.0.1/v1?key={secret}"}
    ),
    "judge: no address": Fault("JUDGE_BASE_URL", {"EVALD_JUDGE_BASE_URL": "{secret}"}),
    "OpenAI: user": Fault("without user", {"OPENAI_BASE_URL": "https://u:{secret}@127.0.0.1/v1"}),
    "OpenAI: port": Fault("OPENAI_BASE_URL", {"OPENAI_BASE_URL": "https://u:{secret}/v1"}),
    "judges: user": Fault("without user", config='[judges.a]\nbaseUrl = "https://u:{secret}@127.0.0.1/v1"'),
    "tokens: user": Fault("without user", {"EVALD_JWT_JWKS_URL": "https://u:{secret}@127.0.0.1/keys"}),
    "tokens: port": Fault("JWKS_URL", {"EVALD_JWT_JWKS_URL": "https://u:{secret}/keys"}),
    "tokens: not https": Fault("wanted https", {"EVALD_JWT_JWKS_URL": "http://127.0.0.1/?key={secret}"}),
    "store: scheme": Fault("EVALD_STORE", {"EVALD_STORE": "mysql://u:{secret}@127.0.0.1/evald"}),
    "store: port": Fault("EVALD_STORE", {"EVALD_STORE": POSTGRES + "{secret}@127.0.0.1:x/evald"}),
    "store: host": Fault("EVALD_STORE", {"EVALD_STORE": POSTGRES + "p@{secret}@127.0.0.1/evald"}),
    "store: path": Fault("EVALD_STORE", {"EVALD_STORE": POSTGRES + "1/{secret}@127.0.0.1/evald"}),
    "store: query": Fault("EVALD_STORE", {"EVALD_STORE": POSTGRES + "1?{secret}@127.0.0.1/evald"}),
    "store: fragment": Fault("EVALD_STORE", {"EVALD_STORE": POSTGRES + "1#{secret}@127.0.0.1/evald"}),
    "store: not there": Fault("database", {"EVALD_STORE": POSTGRES + "{secret}@127.0.0.1:1/evald"}),
    "store: option": Fault("database", {"EVALD_STORE": "postgresql://127.0.0.1:1/evald?key={secret}"}),
    "remote: user": Fault("remote_targets", {"EVALD_REMOTE_TARGETS": "https://u:{secret}@127.0.0.1:1"}),
    "token: option": Fault("--token", arguments=("runs", "list", "--token", "{secret}")),
    "token: option with =": Fault("--token", arguments=("runs", "list", "--token={secret}")),
    "token: of a plugin": Fault("--token", arguments=("conformance", "--connect", "--token", "{secret}")),
    "keys: revoke": Fault(
        "no key has", arguments=("keys", "revoke", "--keys-file", "none", "evald_abcdefghijkl_{secret}")
    ),
    "keys: a key's name": Fault("keys.", keys='["keys"."evald_abcdefghijkl_{secret}"]'),
    "keys: a field's name": Fault("unknown; known", keys=KEY + '"evald_abcdefghijkl_{secret}" = 1'),
    "keys: note": Fault(
        "without an API key",
        arguments=(
            *("keys", "create", "--keys-file", "none", "--principal", "p", "--role", "caller"),
            *("--note", "evald_abcdefghijkl_{secret}00000000001234abcd"),
        ),
    ),
    "keys: rate": Fault(
        "--rate", arguments=("keys", "create", "--rate", "evald_abcdefghijkl_{secret}", "--principal", "p")
    ),
    "keys: file": Fault("no such file", {"EVALD_KEYS_FILE": "evald_abcdefghijkl_{secret}"}),
    "key: as its file": Fault(
        "a path that looks like a token: No such file or directory; wanted a file with the token",
        {"EVALD_TOKEN_FILE": "evald_abcdefghijkl_{secret}"},
        arguments=("types", "--server", "127.0.0.1:1"),
    ),
    "token: as its file": Fault(
        "wanted a file with the token",
        arguments=("types", "--server", "127.0.0.1:1", "--token-file", "eyJhbGciOiJub25l.{secret}.{secret}"),
    ),
    "private key: as its file": Fault(
        "wanted a PEM file",
        {"EVALD_CERT_FILE": "none", "EVALD_KEY_FILE": "-----BEGIN EC PRIVATE KEY-----\n{secret}"},
        arguments=("types", "--server", "127.0.0.1:1"),
    ),
    "judge: key as its file": Fault("api_key_file", config='[judges.a]\napiKeyFile = "sk-{secret}"'),
    "token: two lines": Fault(
        "cannot be sent",
        {"EVALD_TOKEN": "{secret}\n"},
        arguments=("runs", "list", *("--server", "127.0.0.1:1")),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_told_without_the_secret_in_it(
    evald: Any,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    fault, markers = FAULTS[name], Markers()
    secret = markers.plant(name, between="-")
    environment = {key: value.replace("{secret}", secret) for key, value in fault.environment.items()}
    arguments = [one.replace("{secret}", secret) for one in fault.arguments]
    if not arguments:
        config = tmp_path / "evald.toml"
        config.write_text(fault.config.replace("{secret}", secret))
        arguments = [*SERVE, "--config", str(config)]
    if fault.keys:
        keys = tmp_path / "keys.toml"
        keys.write_text(fault.keys.replace("{secret}", secret))
        keys.chmod(0o600)
        environment["EVALD_KEYS_FILE"] = str(keys)
    done = evald(*arguments, EVALD_DEBUG="1", EVALD_LOG_LEVEL="debug", **environment)
    said = done.stdout + done.stderr
    assert done.returncode == 2
    assert fault.says in said
    assert not markers.found_in(said)


async def test_an_issuer_that_repeats_its_address_brings_no_token_into_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs, markers = Authority(tmp_path / "certs").folder, Markers()
    token = markers.plant("address", between="-")

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    monkeypatch.setenv("SSL_CERT_FILE", str(certs / "ca.pem"))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certs / "server.pem", certs / "server.key")
    async with await asyncio.start_server(repeat, "127.0.0.1", 0, ssl=tls) as issuer:
        url = f"https://localhost:{issuer.sockets[0].getsockname()[1]}/keys?token={token}"
        with pytest.raises(OSError, match="ProtocolError") as failed:
            await fetch_document(url, seconds=10, max_bytes=1000)
    assert not markers.found_in(str(failed.value))
