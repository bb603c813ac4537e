"""Migrations give exactly the tables of the schema."""

from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from evald_server.store import database as database_module
from evald_server.store import migrations, rollups
from evald_server.store.database import Database
from evald_server.store.leases import LeaseStore, StoredLease
from evald_server.store.rollups import DAY, HOUR, Rollup, ValueCount
from evald_server.store.runs import RunStore
from evald_server.store.schema import METADATA

from .conftest import Place


@pytest.mark.parametrize("migrated", [True, False])
async def test_a_new_database_has_the_tables_of_the_migrations(
    lasting_place: Place,
    open_database: Callable[[Place], Database],
    monkeypatch: pytest.MonkeyPatch,
    *,
    migrated: bool,
) -> None:
    if migrated:
        monkeypatch.setattr(database_module, "migrate", migrations.upgrade)
    database = open_database(lasting_place)
    await database.start()

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, METADATA)  # type: ignore[no-any-return]

    assert await database.read(differences) == []
    version = text("SELECT version_num FROM alembic_version")
    assert await database.read(lambda connection: connection.scalar(version)) == migrations.HEAD


def test_the_newest_migration_is_the_one_that_a_start_looks_for() -> None:
    versions = Path(migrations.__file__).with_name("versions").glob("*.py")
    assert max(versions).name.startswith(f"{migrations.HEAD}_")


async def test_days_are_added_up_from_the_hours_of_an_older_database(
    lasting_place: Place, open_database: Callable[[Place], Database]
) -> None:
    before = open_database(lasting_place)
    await before.start()
    day = 20_000 * DAY
    hours = [
        Rollup(at, "run", key, 1, 2, 3, 4, 5, 0.5)
        for at in (-HOUR, day, day + 5 * HOUR, day + 23 * HOUR, day + DAY)
        for key in ("one", "two")
    ]

    def make_old(connection: Connection) -> None:
        rollups.add(connection, hours)
        for table in ("daily_rollups", "value_counts", "daily_value_counts"):
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text("ALTER TABLE leases DROP COLUMN owner"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))

    await before.write(make_old)
    await before.close()
    after = open_database(lasting_place)
    await after.start()
    assert await RunStore(after).rollups(-DAY, day + 2 * DAY, DAY) == [
        Rollup(at, "run", key, *(times * count for count in (1, 2, 3, 4, 5, 0.5)))  # type: ignore[arg-type]
        for at, times in ((-DAY, 1), (day, 3), (day + DAY, 1))
        for key in ("one", "two")
    ]
    # And they count on, with values, too.
    value = ValueCount(day, "one", 2.0, 1)
    await after.write(lambda connection: rollups.add(connection, [hours[-1], value, value]))
    for width in (HOUR, DAY):
        assert await RunStore(after).metric_values(day, day + 1, width, ["one"]) == [("one", 2.0, 2)]
    [last] = [one for one in await RunStore(after).rollups(day + DAY, day + 2 * DAY, DAY) if one.key == "two"]
    assert (last.passed, last.value_sum) == (2, 1.0)


async def test_a_lease_of_an_older_database_has_no_owner(
    lasting_place: Place, open_database: Callable[[Place], Database]
) -> None:
    row = StoredLease("lease", "instance", b"plugin", "10.0.0.7:1", "", 30.0, 1.5, owner="{}")
    before = open_database(lasting_place)
    await before.start()
    await LeaseStore(before).put(row)

    def make_old(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE leases DROP COLUMN owner"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0004'"))

    await before.write(make_old)
    await before.close()
    after = open_database(lasting_place)
    await after.start()
    assert await LeaseStore(after).load() == [row._replace(owner="")]
