"""Prepared statements: compiled once, because they run for every turn of a run.

SQLAlchemy takes longer to process the values of a row than SQLite takes to store them, and its Python code holds up
the event loop. Here the SQL is compiled once, and the driver gets the values unchanged: texts must be plain, see
`plain_text`.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Table

# The drivers' parameter styles for values by position.
_STYLES: Final = {"sqlite": "qmark", "postgresql": "format"}


def _compiled(statement: Any, connection: Connection) -> Any:
    dialect: Any = connection.dialect
    return statement.compile(dialect=type(dialect)(paramstyle=_STYLES[dialect.name]))


class PreparedStatement:
    """A SELECT or an UPDATE with `bindparam`s."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._sql: dict[str, tuple[str, Sequence[str]]] = {}  # by the dialect's name

    def execute(self, connection: Connection, **values: Any) -> "CursorResult[*tuple[Any, ...]]":
        """Execute the statement. values: its parameters by name."""
        name = connection.dialect.name
        if name not in self._sql:
            compiled = _compiled(self._statement, connection)
            self._sql[name] = str(compiled), compiled.positiontup
        sql, names = self._sql[name]
        return connection.exec_driver_sql(sql, tuple(values[name] for name in names))


class PreparedInsert:
    """An INSERT of whole rows. make: builds the statement from the dialect's `insert(table)`."""

    def __init__(self, table: Table, make: Callable[[Any], Any] = lambda insert: insert) -> None:
        self._table = table
        self._make = make
        self._sql: dict[str, str] = {}  # by the dialect's name

    def execute(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows, at least one, with the values of all columns in the table's order."""
        name = connection.dialect.name
        if name not in self._sql:
            # Import only the dialect in use: importing PostgreSQL's takes 30 ms.
            insert = import_module(f"sqlalchemy.dialects.{name}").insert
            self._sql[name] = str(_compiled(self._make(insert(self._table)), connection))
        # psycopg is three times as fast with a single row than with a list of one row.
        connection.exec_driver_sql(self._sql[name], list(rows) if len(rows) > 1 else rows[0])
