"""Migrations of the database, run when the server starts. Add new ones at the end of `versions`."""

import logging
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

_FOLDER: Final = Path(__file__).parent

# Of the newest migration; a test compares it with the files.
HEAD: Final = "0004"


class NewerDatabase(Exception):
    """The database was written by a newer version of evald."""


def migrate(connection: Connection) -> None:
    """Bring the tables to this version's, in the transaction of the connection. Raises NewerDatabase."""
    version = text("SELECT version_num FROM alembic_version")
    if inspect(connection).has_table("alembic_version") and connection.scalar(version) == HEAD:
        return
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Only now: importing Alembic takes longer than everything else here.
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
