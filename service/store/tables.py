"""The tables, as SQLAlchemy Core sees them; migrations/versions makes them.

JSON is kept as ASCII text: it is written and read whole, and text holds what a JSON column of PostgreSQL refuses (NUL
characters, lone surrogates) as harmless escapes.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)


class Json(TypeDecorator[Any]):
    """A JSON document as text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(32), primary_key=True),  # sorts by time of submission
    Column("kind", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("name", Json),
    Column("owner", String(32)),
    Column("spec", Json, nullable=False),
    Column("spec_hash", String(64), nullable=False),
    Column("dataset", String(128), nullable=False),
    Column("memory_bytes", BigInteger),
    Column("deadline", Float),
    Column("created", Float, nullable=False),
    Column("not_before", Float, nullable=False),
    Column("started", Float),
    Column("ended", Float),
    Column("lease_owner", String(128)),
    Column("lease_expires", Float),
    Column("runner", Json),
    Column("infra_retries", Integer, nullable=False),
    Column("oom_retries", Integer, nullable=False),
    Column("failure_kind", String(16)),
    Column("failure_message", Json),
    Column("progress", Json, nullable=False),
    Column("metrics", Json, nullable=False),
    Column("result", Json),
    Column("relay", Json, nullable=False),
    Column("mlflow_run_id", String(64)),
    Column("tracker_error", Json),
    Column("last_seq", Integer, nullable=False),
    Column("cancel_requested", Float),
    Column("metadata", Json, nullable=False, server_default="{}"),
    Index("jobs_queue", "state", "kind", "priority", "id"),
    Index("jobs_by_kind", "kind", "id"),
    Index("jobs_by_kind_and_state", "kind", "state", "id"),
    Index("jobs_by_kind_and_owner", "kind", "owner", "id"),
    Index("jobs_by_kind_and_dataset", "kind", "dataset", "id"),
    Index("jobs_by_kind_and_name", "kind", "name", "id"),
    Index("jobs_by_owner", "owner", "state"),
    Index("jobs_by_dataset", "dataset", "state"),
)

job_metadata = Table(  # jobs.metadata once more, entry by entry: so that jobs are found by it
    "job_metadata",
    metadata,
    Column("job_id", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("value", String(256), nullable=False),
    Index("jobs_by_metadata", "key", "value", "job_id"),
)

events = Table(
    "events",
    metadata,
    Column("job_id", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("time", Float, nullable=False),
    Column("type", String(32), nullable=False),
    Column("epoch", Integer),
    Column("data", Json, nullable=False),
    Index("events_by_epoch", "job_id", "type", "epoch"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner", String(32), primary_key=True),  # "" for clients without a key
    Column("key", String(200), primary_key=True),
    Column("request_hash", String(64), nullable=False),
    Column("job_id", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("created", Float, nullable=False),
)

datasets = Table(
    "datasets",
    metadata,
    Column("ref", String(80), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("version", String(12), nullable=False),
    Column("state", String(16), nullable=False),
    Column("job_id", String(32), nullable=False),
    Column("owner", String(32)),
    Column("created", Float, nullable=False),
    Column("options", Json, nullable=False),
    Column("about", Json),
    Column("bytes", BigInteger, nullable=False),
    Column("failure", Json),
    Index("datasets_by_name", "name", "created"),
)

embeddings = Table(
    "embeddings",
    metadata,
    Column("version", String(32), primary_key=True),  # the training job's id: sorts by time of submission
    Column("job_id", String(32), nullable=False),  # of the job that publishes it
    Column("state", String(16), nullable=False),
    Column("owner", String(32)),
    Column("name", Json),
    Column("dataset", String(128), nullable=False),
    Column("dataset_name", String(128), nullable=False),  # without the version
    Column("created", Float, nullable=False),
    Column("published", Float),
    Column("about", Json),
    Column("metrics", Json, nullable=False),
    Column("indexes", Json, nullable=False),
    Column("failure", Json),
    Index("embeddings_by_dataset", "dataset_name", "version"),
)

aliases = Table(
    "aliases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("version", String(32), nullable=False),
    Column("owner", String(32)),
    Column("seq", Integer, nullable=False),
    Column("moved", Float, nullable=False),
    Column("automatic", Boolean, nullable=False),
    Index("aliases_by_version", "version"),
)

alias_moves = Table(
    "alias_moves",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("version", String(32)),  # null: removed
    Column("time", Float, nullable=False),
    Column("owner", String(32)),
    Column("reason", String(16), nullable=False),
    Column("previous", Integer),  # seq of the move to which a roll back from this one returns
)

deleted_versions = Table(  # whose files may still be there; nothing else is ever removed by a sweep
    "deleted_versions",
    metadata,
    Column("version", String(32), primary_key=True),
    Column("time", Float, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("scopes", Json, nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float),
    Column("revoked", Boolean, nullable=False),
    Column("last_used", Float),
)

dispatchers = Table(
    "dispatchers",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("seen", Float, nullable=False),
    Column("info", Json, nullable=False),
)

counters = Table(  # what only ever grows, also when jobs are deleted
    "counters",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
