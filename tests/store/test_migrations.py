"""Migrations give exactly the tables of the schema."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from evald_server.store import migrations
from evald_server.store.database import UNAVAILABLE, Database, StoreProblem
from evald_server.store.leases import LeaseStore, StoredLease
from evald_server.store.schema import METADATA

from .conftest import Place

_BASELINE = Path(__file__).with_name("tables_0005.sql").read_text(encoding="utf-8")

# The types of SQLite, and of PostgreSQL.
_TYPES = {
    "INTEGER": "BIGINT",
    "BLOB": "BYTEA",
    "DOUBLE": "DOUBLE PRECISION",
    "TEXT": 'TEXT COLLATE "C"',
    " WITHOUT ROWID": "",
}

_NEXT = """\
import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("leases", sa.Column("color", sa.Text(), nullable=False, server_default="blue"))
"""

_VERSION = text("SELECT version_num FROM alembic_version")


def _make_baseline(connection: Connection) -> None:
    """Replace the tables by those of revision 0005."""
    statements = _BASELINE
    if connection.dialect.name == "postgresql":
        for name, other in _TYPES.items():
            statements = statements.replace(name, other)
    METADATA.drop_all(connection)
    for statement in statements.rstrip(";\n").split(";\n"):
        connection.exec_driver_sql(statement)
    connection.execute(text("UPDATE alembic_version SET version_num = '0005'"))


async def _restart(
    place: Place, open_database: Callable[[Place], Database], prepare: Callable[[Connection], object]
) -> Database:
    """Return a database that is opened again after `prepare` has changed it."""
    before = open_database(place)
    await before.start()
    await before.write(prepare)
    await before.close()
    after = open_database(place)
    await after.start()
    return after


@pytest.mark.parametrize("migrated", [True, False])
async def test_a_new_database_has_the_tables_of_the_migrations(
    lasting_place: Place, open_database: Callable[[Place], Database], *, migrated: bool
) -> None:
    prepare = _make_baseline if migrated else lambda _: None
    database = await _restart(lasting_place, open_database, prepare)

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, METADATA)  # type: ignore[no-any-return]

    assert await database.read(differences) == []
    assert await database.read(lambda connection: connection.scalar(_VERSION)) == migrations.HEAD


def test_the_newest_migration_is_the_one_that_a_start_looks_for() -> None:
    versions = Path(migrations.__file__).with_name("versions").glob("*.py")
    assert max(versions).name.startswith(f"{migrations.HEAD}_")


async def test_a_newer_migration_changes_an_older_database_and_keeps_its_rows(
    lasting_place: Place,
    open_database: Callable[[Place], Database],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, folder)
    for newer in (folder / "versions").glob("*.py"):
        if newer.name > "0007":
            newer.unlink()
    (folder / "versions/0007_color.py").write_text(_NEXT, encoding="utf-8")
    row = StoredLease("lease", "instance", b"plugin", "10.0.0.7:1", "", 30.0, 1.5, revoked=False, owner="{}")

    old = await _restart(lasting_place, open_database, _make_baseline)
    await LeaseStore(old).put(row)
    await old.close()
    monkeypatch.setattr(migrations, "_FOLDER", folder)
    monkeypatch.setattr(migrations, "HEAD", "0007")
    new = open_database(lasting_place)
    await new.start()
    assert await LeaseStore(new).load() == [row]
    assert await new.read(lambda connection: connection.scalar(text("SELECT color FROM leases"))) == "blue"
    assert await new.read(lambda connection: connection.scalar(_VERSION)) == "0007"


@pytest.mark.parametrize(
    ("revision", "wanted"), [("0004", "before 0.1.0"), ("9999", "newer version of evald: start that version")]
)
async def test_a_database_of_another_version_is_refused(
    lasting_place: Place, open_database: Callable[[Place], Database], revision: str, wanted: str
) -> None:
    changed = text("UPDATE alembic_version SET version_num = :revision").bindparams(revision=revision)
    with pytest.raises(StoreProblem, match=wanted) as refused:
        await _restart(lasting_place, open_database, lambda connection: connection.execute(changed))
    assert refused.value.reason == UNAVAILABLE
