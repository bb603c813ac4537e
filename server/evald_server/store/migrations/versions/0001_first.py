"""The first tables.

Revision ID: 0001
Revises:
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [_column(name, TEXT) for name in names]


def _integers(*names: str) -> list[sa.Column[Any]]:
    return [_column(name, sa.BigInteger()) for name in names]


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "resources",
        *_texts("kind", "id", "name"),
        *_integers("created", "updated"),
        _column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("kind", "id"),
    )
    op.create_index("resources_by_name", "resources", ["kind", "name"], unique=True)
    op.create_index("resources_by_time", "resources", ["kind", "created", "id"])
    op.create_table(
        "runs",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        *_texts("id", "scenario_id", "persona_id", "connector_id", "experiment_id"),
        *_integers("execution_id"),
        _column("status", sa.SmallInteger()),
        _column("verdict", sa.SmallInteger()),
        *_integers("created"),
        *_texts("request_id"),
    )
    op.create_index("runs_by_id", "runs", ["id"], unique=True)
    for name in ("scenario", "persona", "connector", "experiment", "execution"):
        op.create_index(f"runs_by_{name}", "runs", [f"{name}_id", "number"])
    for name in ("status", "verdict"):
        op.create_index(f"runs_by_{name}", "runs", [name, "number"])
    given = sa.text("request_id <> ''")
    op.create_index(
        "runs_by_request", "runs", ["request_id", "number"], sqlite_where=given, postgresql_where=given
    )
    op.create_table(
        "run_states",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        *_integers("last_sequence"),
        _column("body", sa.LargeBinary()),
    )
    op.create_table(
        "run_snapshots",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        _column("body", sa.LargeBinary()),
    )
    op.create_table(
        "run_events",
        _column("number", NUMBER),
        *_integers("sequence"),
        _column("kind", sa.SmallInteger()),
        _column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("number", "sequence"),
    )
    op.create_table(
        "run_failures",
        *_texts("evaluator"),
        *_integers("number"),
        sa.PrimaryKeyConstraint("evaluator", "number"),
    )
    op.create_index("run_failures_by_run", "run_failures", ["number"])
    op.create_table(
        "rollups",
        *_integers("hour"),
        *_texts("scope", "key"),
        *_integers("passed", "failed", "error", "skipped", "value_count"),
        _column("value_sum", sa.Double()),
        sa.PrimaryKeyConstraint("hour", "scope", "key"),
    )
    op.create_table("counters", *_texts("name"), *_integers("value"), sa.PrimaryKeyConstraint("name"))
    op.create_table(
        "leases",
        *_texts("lease_id", "instance_id"),
        _column("plugin", sa.LargeBinary()),
        *_texts("target", "tls_profile"),
        _column("ttl_seconds", sa.Double()),
        _column("registered", sa.Double()),
        _column("revoked", sa.Boolean()),
        sa.PrimaryKeyConstraint("lease_id"),
    )
