"""The example plugins and callers in other languages use TLS and tokens as the environment says it."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import evald
from evald_server.app import App
from evald_server.auth.principal import Role

from ..auth.keyring import make_key
from ..auth.test_workers import client_files, key_of, secured
from ..ports import free_address
from ..rpc.live import until as async_until
from .conftest import Certificates
from .examples import Language, run, started
from .scripted_registry import Registry
from .test_live import Server, check, conversation, is_active, serving, until

pytestmark = pytest.mark.interop


class Secured(NamedTuple):
    """A server that requires certificates and keys, and has a TLS profile "plugins"."""

    server: Server
    certificates: Certificates
    keys: dict[Role, Path]

    @property
    def address(self) -> str:
        return self.server.address

    def environment(self, role: Role) -> dict[str, str]:
        """That of a program that dials."""
        return {**self.certificates.dialling, "EVALD_TOKEN_FILE": str(self.keys[role])}

    def client(self) -> evald.Client:
        files = (self.certificates.file(name) for name in ("ca.pem", "client.pem", "client.key"))
        return evald.Client(self.address, tls=evald.Tls(*files), token=self.keys[Role.CALLER])


@pytest.fixture(scope="module", name="secured")
def _secured(
    evald_command: str, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    keys = {role: folder / f"{role}.key" for role in (Role.CALLER, Role.PLUGIN)}
    for role, path in keys.items():
        path.write_text(
            make_key(folder / "keys.toml", f"the-{role}", role, types=("acme.*",), expires=3600) + "\n"
        )
    names = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.key"}
    profile = {setting: certificates.file(name) for setting, name in names.items()}
    settings = {
        **certificates.listening,
        "EVALD_TLS_CLIENT_AUTH": "require",
        "EVALD_KEYS_FILE": str(folder / "keys.toml"),
        "EVALD_REMOTE_TLS": json.dumps({"plugins": profile}),
    }
    with serving(evald_command, folder, **settings) as server:
        yield Secured(server, certificates, keys)


def test_a_plugin_registers_over_tls_with_a_key_and_is_dialled_and_called_over_tls(
    language: Language, secured: Secured
) -> None:
    environment = secured.environment(Role.PLUGIN) | secured.certificates.listening
    arguments = ["--listen", "127.0.0.1:0", "--register", secured.address, "--tls-profile", "plugins"]
    with started(language, *arguments, environment=environment) as plugin, secured.client() as client:
        until(lambda: is_active(client, language.assertion))
        check(client, language)
        ended = run(
            language,
            [*language.caller, secured.address, language.metric],
            environment=secured.environment(Role.CALLER),
        )
        assert ended.returncode == 0, ended
        assert plugin.terminate() == 0
        until(lambda: not is_active(client, language.assertion))


async def test_a_plugin_serves_three_servers_and_a_fourth_that_starts_later(
    language: Language, certificates: Certificates, tmp_path: Path
) -> None:
    plugin, caller = (key_of(tmp_path, role) for role in (Role.PLUGIN, Role.CALLER))
    keys, folder = tmp_path / "keys.toml", certificates.folder
    fourth = free_address()
    async with secured(folder, keys) as one, secured(folder, keys) as two, secured(folder, keys) as three:
        apps = [one, two, three]
        arguments = [word for app in apps for word in ("--connect", app.address)]
        environment = {**certificates.dialling, "EVALD_TOKEN_FILE": str(plugin)}
        with started(language, *arguments, "--connect", fourth, environment=environment) as process:
            await works(apps, language, folder, caller)
            async with secured(folder, keys, fourth) as four:
                await works([four], language, folder, caller)
                assert await asyncio.to_thread(process.terminate) == 0
                assert not any(app.remotes.instances.by_id for app in (*apps, four))


async def works(apps: Sequence[App], language: Language, certs: Path, caller: Path) -> None:
    """The plugin evaluates at each server, within the 35 s that one which has just started may wait."""
    for app in apps:
        await async_until(lambda app=app: app.remotes.instances.by_id, 35)
        async with evald.AsyncClient(app.address, tls=client_files(certs), token=caller) as client:
            assert (await client.evaluate(conversation(language.good), [language.metric])).passed


def test_what_is_not_right_is_refused_by_one_side_or_the_other(language: Language, secured: Secured) -> None:
    right = secured.environment(Role.CALLER)
    port = secured.address.rpartition(":")[2]
    cases = {
        "a name that the certificate does not have": (f"localhost:{port}", right, "unavailable"),
        "no certificate of the caller": (
            secured.address,
            {name: right[name] for name in ("EVALD_CA_FILE", "EVALD_TOKEN_FILE")},
            "unavailable",
        ),
        "no key": (secured.address, secured.certificates.dialling, "unauthenticated"),
        "a key for a path": (secured.address, right | {"EVALD_TOKEN_FILE": "canary-key"}, "cannot be read"),
    }
    for case, (server, environment, said) in cases.items():
        ended = run(language, [*language.caller, server], environment=environment)
        assert ended.returncode == 2, (case, ended)
        assert said in ended.stderr.lower(), (case, ended)
        assert "canary" not in ended.stderr + ended.stdout, (case, ended)


def test_a_token_goes_to_another_machine_encrypted_only(language: Language, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("canary-token")
    ended = run(language, [*language.caller, "192.0.2.1:50051"], environment={"EVALD_TOKEN_FILE": str(token)})
    assert ended.returncode == 2, ended
    assert "a token for 192.0.2.1:50051 without TLS" in ended.stderr
    assert "canary" not in ended.stderr + ended.stdout
    with started(
        language, "--connect", "192.0.2.1:50051", environment={"EVALD_TOKEN": "canary-token"}
    ) as plugin:
        assert plugin.wait() == 1
        assert "canary" not in "".join(plugin.output)


def test_the_file_of_a_token_is_read_again_for_every_session(language: Language, tmp_path: Path) -> None:
    """On this machine, where a token may be sent without TLS."""
    token = tmp_path / "token"
    token.write_text("one\n")
    registry = Registry()
    address = registry.start()
    try:
        with started(language, "--connect", address, environment={"EVALD_TOKEN_FILE": str(token)}) as plugin:
            session = registry.session()
            assert session.authorization == ["Bearer one"]
            session.welcome("first")
            plugin.line("first")
            token.unlink()
            session.end()
            plugin.line("again: ")
            token.write_text("two")
            assert registry.session().authorization == ["Bearer two"]
    finally:
        registry.stop()
