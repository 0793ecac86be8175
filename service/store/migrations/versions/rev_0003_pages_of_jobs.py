"""Indexes for pages of jobs by state, key or data set: a page with few hits looked at every job there is."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for column in ("state", "owner", "dataset"):
        op.create_index(f"jobs_by_kind_and_{column}", "jobs", ["kind", column, "id"])


def downgrade() -> None:
    for column in ("state", "owner", "dataset"):
        op.drop_index(f"jobs_by_kind_and_{column}", "jobs")
