"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "datasets",
        sa.Column("ref", sa.String(80), primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.String(12), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(32)),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("about", sa.Text()),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.Text()),
    )
    op.create_index("datasets_by_name", "datasets", ["name", "created"])
    op.create_table(
        "dispatchers",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("info", sa.Text(), nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column("owner", sa.String(32)),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_hash", sa.String(64), nullable=False),
        sa.Column("dataset", sa.String(128), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger()),
        sa.Column("deadline", sa.Float()),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("not_before", sa.Float(), nullable=False),
        sa.Column("started", sa.Float()),
        sa.Column("ended", sa.Float()),
        sa.Column("lease_owner", sa.String(128)),
        sa.Column("lease_expires", sa.Float()),
        sa.Column("runner", sa.Text()),
        sa.Column("infra_retries", sa.Integer(), nullable=False),
        sa.Column("oom_retries", sa.Integer(), nullable=False),
        sa.Column("failure_kind", sa.String(16)),
        sa.Column("failure_message", sa.Text()),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("result", sa.Text()),
        sa.Column("relay", sa.Text(), nullable=False),
        sa.Column("mlflow_run_id", sa.String(64)),
        sa.Column("tracker_error", sa.Text()),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Float()),
    )
    op.create_index("jobs_by_dataset", "jobs", ["dataset", "state"])
    op.create_index("jobs_by_kind", "jobs", ["kind", "id"])
    op.create_index("jobs_by_owner", "jobs", ["owner", "state"])
    op.create_index("jobs_queue", "jobs", ["state", "kind", "priority", "id"])
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float()),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.Column("last_used", sa.Float()),
    )
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer(), primary_key=True),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("epoch", sa.Integer()),
        sa.Column("data", sa.Text(), nullable=False),
    )
    op.create_index("events_by_epoch", "events", ["job_id", "type", "epoch"])
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.String(32), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("idempotency")
    op.drop_table("events")
    op.drop_table("keys")
    op.drop_table("jobs")
    op.drop_table("dispatchers")
    op.drop_table("datasets")
    op.drop_table("counters")
