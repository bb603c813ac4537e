"""The setting `store`: a PostgreSQL database for one server at a time, whose password nobody sees."""

import pytest

from evald_server.app import App, StartError
from evald_server.config import Settings, SettingsError, load_settings

from .postgres import Postgres


def app(url: str) -> App:
    return App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None, "web": None, "store": url}))


async def test_a_second_server_on_a_database_does_not_start(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evald_server.store.database._TAKE_OVER_SECONDS", 0.2)
    url = postgres.create()
    first = app(url)
    await first.start()
    try:
        with pytest.raises(StartError, match=r"store: another server uses this database.*EVALD_STORE"):
            await app(url).start()
    finally:
        await first.stop(0)
    again = app(url)
    await again.start()
    await again.stop(0)


@pytest.mark.parametrize(
    "url",
    ["hunter2", "mysql://me:hunter2@db/evald", "postgresql://me:hunter2@db:port/evald", "sqlite:///hunter2"],
)
def test_another_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match=r"EVALD_STORE: .*wanted .*://") as refused:
        load_settings(environ={"EVALD_STORE": url})
    assert "hunter2" not in str(refused.value)


def test_the_address_is_not_shown() -> None:
    settings = load_settings(environ={"EVALD_STORE": "postgresql://me:hunter2@db/evald"})
    assert "hunter2" not in repr(settings)
    assert load_settings(environ={"EVALD_STORE": ""}).store is None
