"""The table of remote evaluator types that were ever offered.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table."""
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "remote_types",
        sa.Column("type", text, primary_key=True, nullable=False),
        sa.Column("version", text, primary_key=True, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("plugin", text, nullable=False),
        sa.Column("principal", text, nullable=False),
        sa.Column("offered", sa.BigInteger(), nullable=False),
    )
