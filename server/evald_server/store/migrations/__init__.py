"""Migrations of the database, run when the server starts.

An empty database gets the tables of `schema` directly and counts as migrated. To change the tables: change `schema`,
add `versions/0007_what.py` with `revision = "0007"`, `down_revision = "0006"` and an `upgrade()` that uses
`alembic.op`, and set HEAD. `tests/store/test_migrations.py` compares the tables that the migrations make of those of
revision 0005 with `schema`.
"""

import logging
from pathlib import Path
from typing import Final

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    select,
)

from ..schema import METADATA

_FOLDER: Final = Path(__file__).parent

# Revision of the newest migration; a test compares it with the files.
HEAD: Final = "0006"

# The oldest revision that can be migrated: the tables of 0.1.0. Earlier ones were never released.
_BASELINE: Final = "0005"

# The same table that Alembic creates.
_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class OtherVersion(Exception):
    """A database of a version of evald from which this one cannot migrate. The message is for callers."""


def migrate(connection: Connection) -> None:
    """Migrate the tables to this version in the connection's transaction. Raises OtherVersion."""
    if not inspect(connection).has_table(_VERSION.name):
        # Not with Alembic: its import is the slowest part of a start.
        METADATA.create_all(connection, checkfirst=False)
        _VERSION.create(connection)
        connection.execute(insert(_VERSION), {"version_num": HEAD})
        return
    revision = connection.scalar(select(_VERSION)) or ""
    if revision < _BASELINE:
        raise OtherVersion(
            "the database was written by a version of evald before 0.1.0: give this one another database, "
            "EVALD_DATA_DIR or EVALD_STORE"
        )
    if revision != HEAD:
        _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as problem:
        raise OtherVersion(
            "the database was written by a newer version of evald: start that version"
        ) from problem
