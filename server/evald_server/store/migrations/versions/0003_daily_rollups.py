"""Rollups by day, in addition to those by hour.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
DAY = 86_400_000_000


def upgrade() -> None:
    """Create the table and fill it with the sums of the hourly rollups."""
    integers = ("passed", "failed", "error", "skipped", "value_count")
    op.create_table(
        "daily_rollups",
        sa.Column("hour", sa.BigInteger(), nullable=False),
        *(sa.Column(name, TEXT, nullable=False) for name in ("scope", "key")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in integers),
        sa.Column("value_sum", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "scope", "key"),
    )
    # Round down to the start of the day, also for times before 1970.
    day = f"hour - (hour % {DAY} + {DAY}) % {DAY}"
    summed = (*integers, "value_sum")
    columns = ", ".join(("hour", "scope", "key", *summed))
    sums = ", ".join(f"SUM({name})" for name in summed)
    selected = f"SELECT {day}, scope, key, {sums} FROM rollups GROUP BY 1, scope, key"  # noqa: S608 - constants
    op.execute(f"INSERT INTO daily_rollups ({columns}) {selected}")
