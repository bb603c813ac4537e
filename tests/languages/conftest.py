"""Fixtures for the languages whose tools are installed, and certificates."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evald_server.dev_certificates import make_certificates

from .examples import LANGUAGES, Language, build, missing_tools


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> dict[str, str | None]:
    """Build the languages of the selected tests. Returns the errors by language.

    At the same time, because they wait for their registries most of the time.
    """
    chosen = [found for item in request.session.items if (found := _language_of(item))]
    wanted = {language.name: language for language in chosen if not missing_tools(language)}
    with ThreadPoolExecutor() as pool:
        return dict(zip(wanted, pool.map(build, wanted.values()), strict=True))


def _language_of(item: Any) -> Language | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("language") if callspec else None


@pytest.fixture(scope="session", params=LANGUAGES, ids=lambda language: language.name)
def language(request: Any, built: dict[str, str | None]) -> Language:
    """A built language. Skips the test if its tools are missing."""
    if missing := missing_tools(request.param):
        pytest.skip(f"{request.param.name}: not installed: {', '.join(missing)}")
    problem = built[request.param.name]
    assert problem is None, problem
    return request.param


class Certificates(NamedTuple):
    """A folder with a CA, a server's certificate for 127.0.0.1 alone, and a client's."""

    folder: Path

    def file(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def dialling(self) -> dict[str, str]:
        """Return the environment of a program that dials."""
        return {
            "EVALD_CA_FILE": self.file("ca.pem"),
            "EVALD_CERT_FILE": self.file("client.pem"),
            "EVALD_KEY_FILE": self.file("client.key"),
        }

    @property
    def listening(self) -> dict[str, str]:
        """Return the environment of a program that listens and requires certificates."""
        return {
            "EVALD_TLS_CERT_FILE": self.file("server.pem"),
            "EVALD_TLS_KEY_FILE": self.file("server.key"),
            "EVALD_TLS_CLIENT_CA_FILE": self.file("ca.pem"),
        }


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of one CA."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"], days=1)
    return Certificates(folder)
