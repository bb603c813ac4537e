"""Owners of leases. Earlier leases have none: a server with credentials does not restore them, and their plugins register again.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column."""
    op.add_column("leases", sa.Column("owner", TEXT, nullable=False, server_default=""))
