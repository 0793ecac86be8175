"""Published embeddings without training: a genuine export, made a version by the service's own code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from service.embeddings.jobs import finish_publish, publish_job
from service.store.records import Claim
from tests.service.api.server import Live
from tests.service.embeddings.tables import make_export, make_ids
from tests.service.embeddings.tables import publish as build

METRICS = {
    "eval": {
        "probe": {"test": 0.9312, "val": 0.9}, "geometry": {"effective_rank": 3.5},
        "protocol": {"name": "clean", "split": None, "seed": 0, "probe": {}, "clustering": {}, "pairs": {}},
    }
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A version, and what it was made of."""

    version: str
    vectors: np.ndarray  # float32 [rows, dim]
    ids: list[Any]


def trained(
    live: Live,
    rows: int = 100,
    dim: int = 8,
    ids: Any = "int",
    seed: int = 0,
    *,
    job_id: str | None = None,
    **table: Any,
) -> Published:
    """A training job (a new one, if none is named) that has just succeeded; a queued job will publish its version."""
    job = live.claim(job_id or live.submit(name="of a test")["id"])
    run = make_export(live.settings.run_directory(job.id), rows, dim, ids, seed=seed, **table)
    result = {"embeddings": True, "metrics": METRICS}
    live.store.claims.finish(Claim.on(job), "succeeded", result=result, publish=publish_job(job))
    return Published(job.id, np.load(run / "embeddings" / "vectors.npy"), make_ids(rows, ids, seed))


def conclude(live: Live, version: str, failure: str | None = None) -> None:
    """Do what its publishing job and the dispatcher do."""
    job = live.store.claims.claim("dispatcher", kinds=("publish",), lease_seconds=60)
    assert job is not None
    assert job.spec["version"] == version
    if failure is None:
        build(live.settings.run_directory(version), live.settings.home, version)
    finish_publish(job, live.store, live.settings, failure=failure)
    live.store.claims.finish(Claim.on(job), "succeeded" if failure is None else "failed")


def published(live: Live, *arguments: Any, **table: Any) -> Published:
    """A version that is ready; arguments are those of `make_export`."""
    made = trained(live, *arguments, **table)
    conclude(live, made.version)
    return made


def nearest(vectors: np.ndarray, queries: np.ndarray, metric: str = "cosine") -> tuple[np.ndarray, np.ndarray]:
    """Brute force in float64: rows by falling score, ties by row, and the scores [q, rows] in that order."""
    table, asked = vectors.astype(np.float64), queries.astype(np.float64)
    if metric == "cosine":
        table = table / np.linalg.norm(table, axis=1, keepdims=True)
        asked = asked / np.linalg.norm(asked, axis=1, keepdims=True)
    scores = asked @ table.T
    order = np.argsort(-scores, axis=1, kind="stable")
    return order, np.take_along_axis(scores, order, axis=1)
