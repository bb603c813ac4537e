"""Counts of metric values by hour and by day. Earlier values are only in the rollups' sums.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Create the tables."""
    for name in ("value_counts", "daily_value_counts"):
        op.create_table(
            name,
            sa.Column("span", sa.BigInteger(), nullable=False),
            sa.Column("key", TEXT, nullable=False),
            sa.Column("value", sa.Double(), nullable=False),
            sa.Column("hour", sa.BigInteger(), nullable=False),
            sa.Column("times", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("span", "key", "value", "hour"),
            sqlite_with_rowid=False,
        )
