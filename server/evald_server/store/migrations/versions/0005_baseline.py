"""The tables of 0.1.0, which `schema` creates. Only the start of later migrations.

Revision ID: 0005
Revises:
"""

revision = "0005"
down_revision = None


def upgrade() -> None:
    """Do nothing: a new database gets the newest tables directly."""
