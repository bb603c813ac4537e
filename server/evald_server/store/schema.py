"""The database tables. A change here needs a migration (see `migrations`); a test compares both.

Times are Unix microseconds. Bodies are serialised protobuf messages.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    text,
)

METADATA: Final = MetaData()

# Ordered by bytes on both databases; PostgreSQL's own order depends on where it runs.
_TEXT: Final = Text().with_variant(Text(collation="C"), "postgresql")

# In SQLite only an INTEGER PRIMARY KEY is the key by which rows are stored.
_NUMBER: Final = BigInteger().with_variant(Integer(), "sqlite")


def plain_text(value: str) -> str:
    """Replace NUL characters, which PostgreSQL cannot store."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}")


class PlainText(TypeDecorator[str]):
    """A text column without NUL characters."""

    impl = _TEXT
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: object) -> str | None:
        """Replace characters that cannot be stored."""
        return None if value is None else plain_text(value)


def _text(name: str, *, key: bool = False) -> Column[str]:
    return Column(name, PlainText, primary_key=key, nullable=False)


def _integer(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


RESOURCES: Final = Table(
    "resources",
    METADATA,
    _text("kind", key=True),
    _text("id", key=True),
    _text("name"),
    _integer("created"),
    _integer("updated"),
    Column("body", LargeBinary, nullable=False),
    Index("resources_by_name", "kind", "name", unique=True),
    Index("resources_by_time", "kind", "created", "id"),
)

# Only the columns that filters use, so that a filter without an index reads few pages.
# number: the sort key of runs. It is the time of creation, or the largest number plus 1 if the clock was set back; for
# an imported run, a free number at or after its time of creation.
RUNS: Final = Table(
    "runs",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    _text("id"),
    _text("scenario_id"),
    _text("persona_id"),
    _text("connector_id"),
    _text("experiment_id"),
    _integer("execution_id"),
    Column("status", SmallInteger, nullable=False),
    Column("verdict", SmallInteger, nullable=False),
    _integer("created"),
    _text("request_id"),
    Index("runs_by_id", "id", unique=True),
    Index("runs_by_scenario", "scenario_id", "number"),
    Index("runs_by_persona", "persona_id", "number"),
    Index("runs_by_connector", "connector_id", "number"),
    Index("runs_by_experiment", "experiment_id", "number"),
    Index("runs_by_execution", "execution_id", "number"),
    Index("runs_by_status", "status", "number"),
    Index("runs_by_verdict", "verdict", "number"),
    Index(
        "runs_by_request",
        "request_id",
        "number",
        sqlite_where=text("request_id <> ''"),
        postgresql_where=text("request_id <> ''"),
    ),
)

# body: the run without messages and turns, with only the names of its snapshots.
RUN_STATES: Final = Table(
    "run_states",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    _integer("last_sequence"),
    Column("body", LargeBinary, nullable=False),
)

# body: a run with only its scenario, persona and connector.
RUN_SNAPSHOTS: Final = Table(
    "run_snapshots",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

RUN_EVENTS: Final = Table(
    "run_events",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", SmallInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# evaluator: a name or a type.
RUN_FAILURES: Final = Table(
    "run_failures",
    METADATA,
    _text("evaluator", key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Index("run_failures_by_run", "number"),
)

# number: as in runs. attempt: 1, plus one for each resumption. opening: digests of the opening message's fields, in
# JSON. status: 0 means that the suite run is being deleted.
SUITE_RUNS: Final = Table(
    "suite_runs",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    _text("id"),
    _text("suite"),
    _text("target"),
    Column("status", SmallInteger, nullable=False),
    Column("verdict", SmallInteger, nullable=False),
    _integer("created"),
    _integer("attempt"),
    Column("opening", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("suite_runs_by_id", "id", unique=True),
    Index("suite_runs_by_suite", "suite", "number"),
    Index("suite_runs_by_target", "target", "number"),
    Index("suite_runs_by_status", "status", "number"),
    Index("suite_runs_by_verdict", "verdict", "number"),
)

# whole: a CaseResult. brief: the same without its trials, which may be large. attempt: the attempt of the suite run
# that stored the case.
SUITE_CASES: Final = Table(
    "suite_cases",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    _text("case_id", key=True),
    Column("verdict", SmallInteger, nullable=False),
    _integer("attempt"),
    Column("brief", LargeBinary, nullable=False),
    Column("whole", LargeBinary, nullable=False),
    Index("suite_cases_by_verdict", "number", "verdict", "case_id"),
)


def _rollups(name: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("hour", BigInteger, primary_key=True, autoincrement=False),
        _text("scope", key=True),
        _text("key", key=True),
        _integer("passed"),
        _integer("failed"),
        _integer("error"),
        _integer("skipped"),
        _integer("value_count"),
        Column("value_sum", Double, nullable=False),
    )


# hour: the start of the hour or of the UTC day.
ROLLUPS: Final = _rollups("rollups")
DAILY_ROLLUPS: Final = _rollups("daily_rollups")


def _value_counts(name: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("span", BigInteger, primary_key=True, autoincrement=False),
        _text("key", key=True),
        Column("value", Double, primary_key=True),
        Column("hour", BigInteger, primary_key=True, autoincrement=False),
        _integer("times"),
        sqlite_with_rowid=False,
    )


# Number of times that metrics had a rounded value. hour, key: as in the rollups. span: the start of the 30 hours or
# days that contain `hour`. Within a span, all rows of a value are adjacent, so they are summed without sorting.
VALUE_COUNTS: Final = _value_counts("value_counts")
DAILY_VALUE_COUNTS: Final = _value_counts("daily_value_counts")

COUNTERS: Final = Table("counters", METADATA, _text("name", key=True), _integer("value"))

LEASES: Final = Table(
    "leases",
    METADATA,
    _text("lease_id", key=True),
    _text("instance_id"),
    Column("plugin", LargeBinary, nullable=False),
    _text("target"),
    _text("tls_profile"),
    Column("ttl_seconds", Double, nullable=False),
    Column("registered", Double, nullable=False),
    Column("revoked", Boolean, nullable=False),
    _text("owner"),
)

# Remote evaluator types that were ever offered. body: an EvaluatorType. offered: the first time.
REMOTE_TYPES: Final = Table(
    "remote_types",
    METADATA,
    _text("type", key=True),
    _text("version", key=True),
    Column("body", LargeBinary, nullable=False),
    _text("plugin"),
    _text("principal"),
    _integer("offered"),
)
