"""What clients note on their jobs, and indexes to find jobs by it and by their names."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("metadata", sa.Text(), nullable=False, server_default="{}"))
    op.create_table(
        "job_metadata",
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("value", sa.String(256), nullable=False),
    )
    op.create_index("jobs_by_metadata", "job_metadata", ["key", "value", "job_id"])
    op.create_index("jobs_by_kind_and_name", "jobs", ["kind", "name", "id"])


def downgrade() -> None:
    op.drop_index("jobs_by_kind_and_name", "jobs")
    op.drop_table("job_metadata")
    op.drop_column("jobs", "metadata")
