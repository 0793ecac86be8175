"""From versions and aliases of the store to the documents that clients read (`schemas` describes them)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.api.problems import clean
from service.store.clock import moment
from service.store.records import Alias, AliasMove, Embedding

PREFIX = "/v1/embeddings"
_LONGEST = 10_000  # characters of a failure


def embedding_document(row: Embedding, aliases: Sequence[str]) -> dict[str, Any]:
    """All that a client may know of a version, but for the names of its classes, which only one by itself has."""
    about = row.about or {}
    return {
        "version": row.version, "state": row.state, "job": row.job_id, "dataset": row.dataset, "name": row.name,
        "owner": row.owner, "created": moment(row.created), "published": moment(row.published),
        "rows": about.get("rows"), "dim": about.get("dim"), "id_type": about.get("id_type"),
        "bytes": about.get("bytes"), "aliases": list(aliases), "metrics": row.metrics, "indexes": row.indexes,
        "failure": None if row.failure is None else clean(row.failure, _LONGEST), "links": _links(row, about),
    }  # fmt: skip


def _links(row: Embedding, about: dict[str, Any]) -> dict[str, Any]:
    own = f"{PREFIX}/{row.version}"
    found: dict[str, Any] = dict.fromkeys(("nodes", "lookup", "neighbors", "download", "embed", "classify"))
    if row.state == "ready":
        found = {name: f"{own}/{name}" for name in ("nodes", "lookup", "neighbors", "classify")}
        found["download"] = {form: f"{own}/download?format={form}" for form in ("npy", "parquet", "ids")}
        found["embed"] = f"{own}/embed" if about.get("has_encoder") else None
    return {"self": own, **found, "job": f"/v1/jobs/{row.version}"}


def alias_document(alias: Alias, history: Sequence[AliasMove] | None = None) -> dict[str, Any]:
    """An alias; with its history, if that was read."""
    shown: dict[str, Any] = {
        "name": alias.name, "version": alias.version, "moved": moment(alias.moved), "owner": alias.owner,
        "automatic": alias.automatic, "seq": alias.seq,
    }  # fmt: skip
    if history is not None:
        shown["history"] = [
            {
                "seq": move.seq, "version": move.version, "time": moment(move.time), "owner": move.owner,
                "reason": move.reason,
            }
            for move in history
        ]  # fmt: skip
    return shown
