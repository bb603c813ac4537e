"""Suite runs and their cases.

Revision ID: 0002
Revises: 0001
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "suite_runs",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        *(_column(name, TEXT) for name in ("id", "suite", "target")),
        *(_column(name, sa.SmallInteger()) for name in ("status", "verdict")),
        *(_column(name, sa.BigInteger()) for name in ("created", "attempt")),
        *(_column(name, sa.LargeBinary()) for name in ("opening", "body")),
    )
    op.create_index("suite_runs_by_id", "suite_runs", ["id"], unique=True)
    for name in ("suite", "target", "status", "verdict"):
        op.create_index(f"suite_runs_by_{name}", "suite_runs", [name, "number"])
    op.create_table(
        "suite_cases",
        _column("number", sa.BigInteger()),
        _column("case_id", TEXT),
        _column("verdict", sa.SmallInteger()),
        _column("attempt", sa.BigInteger()),
        *(_column(name, sa.LargeBinary()) for name in ("brief", "whole")),
        sa.PrimaryKeyConstraint("number", "case_id"),
    )
    op.create_index("suite_cases_by_verdict", "suite_cases", ["number", "verdict", "case_id"])
