"""Statements that run for every turn of a run.

SQLAlchemy takes longer for the values of each row than SQLite takes to store them, in Python, where it holds up the
event loop. Here the SQL is made once, and the driver gets the values as they are: texts must be plain, see
`plain_text`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import psycopg

_DIALECTS: Final[dict[str, Any]] = {
    "sqlite": (sqlite.insert, sqlite.dialect()),
    "postgresql": (postgresql.insert, psycopg.dialect(paramstyle="format")),  # type: ignore[no-untyped-call]
}


class PreparedStatement:
    """A SELECT or an UPDATE with `bindparam`s."""

    def __init__(self, statement: Any) -> None:
        compiled = {name: statement.compile(dialect=dialect) for name, (_, dialect) in _DIALECTS.items()}
        self._sql = {name: (str(one), one.positiontup) for name, one in compiled.items()}

    def execute(self, connection: Connection, **values: Any) -> "CursorResult[*tuple[Any, ...]]":
        """Run it. values: of its parameters."""
        sql, names = self._sql[connection.dialect.name]
        return connection.exec_driver_sql(sql, tuple(values[name] for name in names))


class PreparedInsert:
    """An INSERT of whole rows. make: makes it of a database's `insert(table)`."""

    def __init__(self, table: Table, make: Callable[[Any], Any] = lambda insert: insert) -> None:
        self._sql = {
            name: str(make(insert(table)).compile(dialect=dialect))
            for name, (insert, dialect) in _DIALECTS.items()
        }

    def execute(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows, at least one, with the values of all columns in the table's order."""
        # For one row psycopg is three times as fast with the row alone.
        values = list(rows) if len(rows) > 1 else rows[0]
        connection.exec_driver_sql(self._sql[connection.dialect.name], values)
