"""Published embeddings, and the names that point to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "embeddings",
        sa.Column("version", sa.String(32), primary_key=True),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(32)),
        sa.Column("name", sa.Text()),
        sa.Column("dataset", sa.String(128), nullable=False),
        sa.Column("dataset_name", sa.String(128), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("published", sa.Float()),
        sa.Column("about", sa.Text()),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("indexes", sa.Text(), nullable=False),
        sa.Column("failure", sa.Text()),
    )
    op.create_index("embeddings_by_dataset", "embeddings", ["dataset_name", "version"])
    op.create_table(
        "aliases",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("version", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(32)),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("moved", sa.Float(), nullable=False),
        sa.Column("automatic", sa.Boolean(), nullable=False),
    )
    op.create_index("aliases_by_version", "aliases", ["version"])
    op.create_table(
        "alias_moves",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("seq", sa.Integer(), primary_key=True),
        sa.Column("version", sa.String(32)),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("owner", sa.String(32)),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("previous", sa.Integer()),
    )
    op.create_table(
        "deleted_versions",
        sa.Column("version", sa.String(32), primary_key=True),
        sa.Column("time", sa.Float(), nullable=False),
    )
    op.execute("INSERT INTO counters (name, value) VALUES ('embeddings', 0)")


def downgrade() -> None:
    op.execute("DELETE FROM counters WHERE name = 'embeddings'")
    op.drop_table("deleted_versions")
    op.drop_table("alias_moves")
    op.drop_table("aliases")
    op.drop_table("embeddings")
