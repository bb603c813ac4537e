"""Migrations give exactly the tables of the schema."""

from collections.abc import Callable
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from evald_server.store import migrations
from evald_server.store.database import Database
from evald_server.store.schema import METADATA

from .conftest import Place


async def test_the_migrations_give_the_tables_of_the_schema(
    lasting_place: Place, open_database: Callable[[Place], Database]
) -> None:
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
