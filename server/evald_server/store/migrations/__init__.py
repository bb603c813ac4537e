"""Migrations of the database, run when the server starts. Add new ones at the end of `versions`.

An empty database gets the tables of `schema` directly and counts as migrated.
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
HEAD: Final = "0005"


# The same table that Alembic creates.
_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class NewerDatabase(Exception):
    """The database was written by a newer version of evald."""


def migrate(connection: Connection) -> None:
    """Migrate the tables to this version in the connection's transaction. Raises NewerDatabase."""
    if not inspect(connection).has_table(_VERSION.name):
        # A test checks that the migrations give the same tables. Not with Alembic: its import is the slowest part of
        # a start.
        METADATA.create_all(connection, checkfirst=False)
        _VERSION.create(connection)
        connection.execute(insert(_VERSION), {"version_num": HEAD})
    elif connection.scalar(select(_VERSION)) != HEAD:
        upgrade(connection)


def upgrade(connection: Connection) -> None:
    """Run the missing migrations. Raises NewerDatabase."""
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
        raise NewerDatabase(str(problem)) from None
