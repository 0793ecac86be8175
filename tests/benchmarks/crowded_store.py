"""What a store that has grown costs: each call on 5,000 versions and 100,000 ended jobs, over the same on 1,000 jobs.

    python tests/benchmarks/crowded_store.py                    SQLite, 100,000 jobs: two minutes
    python tests/benchmarks/crowded_store.py --jobs 20000

Ratios are what counts: a call that looks at a page, a queue or one job should not notice how many others there are.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import insert

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # it is run as a script, from anywhere

from service.settings import Settings  # noqa: E402
from service.store import Store, open_store  # noqa: E402
from service.store.engine import check_file, writing  # noqa: E402
from service.store.records import Claim, NewJob, new_id  # noqa: E402
from service.store.tables import embeddings, events, jobs  # noqa: E402

SMALL, JOBS, PER_VERSION, EVENTS = 1_000, 100_000, 20, 3
KEYS = [f"{number:012x}" for number in range(10)]
ROUNDS, SECONDS = 15, 1.0  # of each call, at most
SPEC = {"data": {"name": "digits"}, "optimiser": {"epochs": 100}, "notes": "x" * 400}
PROGRESS = {"phase": "done", "epoch": 100, "epochs": 100, "share": 1.0, "epochs_per_second": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nml-bench-") as folder:
        small, large = (measure(Path(folder) / str(count), count) for count in (SMALL, options.jobs))
    print(f"{'call':<34} {SMALL:>9,} jobs {options.jobs:>9,} jobs   ratio")
    for call, before in small.items():
        unit = "MB" if call.endswith("memory") else "ms"
        print(f"{call:<34} {before:>11.2f} {unit} {large[call]:>11.2f} {unit} {large[call] / max(before, 0.01):>7.1f}")


def measure(home: Path, count: int) -> dict[str, float]:
    """Milliseconds of each call, and the memory that the API's catalog takes."""
    settings = Settings(home=home)
    with closing(open_store(settings)) as store:
        fill(store, count)
        store.database.writer.dispose()
    begun = time.perf_counter()
    with closing(open_store(settings)) as store:
        found = {"open the store": 1_000 * (time.perf_counter() - begun)}
        found["check the whole file"] = milliseconds(lambda: check_file(store.database))
        for name, call in calls(store).items():
            found[name] = milliseconds(call)
    with closing(open_store(settings)) as store:
        tracemalloc.start()
        kept = store.embeddings.snapshot()
        found["catalog's memory"] = tracemalloc.get_traced_memory()[0] / 1e6
        tracemalloc.stop()
        assert len(kept.versions) == count // PER_VERSION
    return found


def calls(store: Store) -> dict[str, Callable[[], Any]]:
    """What API and dispatcher do all the time, and what they do now and then."""
    middle = store.jobs.list(kind="train", limit=1)[0][0].id[:5] + "0" * 21
    claims = store.claims
    return {
        "jobs: first page": lambda: store.jobs.list(kind="train"),
        "jobs: a page of one key": lambda: store.jobs.list(kind="train", owner=KEYS[3]),
        "jobs: page of a key without jobs": lambda: store.jobs.list(kind="train", owner="f" * 12),
        "jobs: those that run": lambda: store.jobs.list(kind="train", states=["running"]),
        "jobs: those that failed": lambda: store.jobs.list(kind="train", states=["failed"]),
        "jobs: of a data set without jobs": lambda: store.jobs.list(kind="train", dataset="none"),
        "jobs: of a data set": lambda: store.jobs.list(kind="train", dataset="papers"),
        "jobs: from a cursor": lambda: store.jobs.list(kind="train", before=middle),
        "jobs: sweeps (none)": lambda: store.jobs.list(kind="sweep"),
        "submit, claim, finish": lambda: one_job(store),
        "claim from an empty queue": lambda: claims.claim("d", kinds=("train",), lease_seconds=9, fair=True),
        "expire": claims.expire,
        "held": lambda: claims.held("d"),
        "take over": lambda: claims.take_over("d", lease_seconds=9, host="h", foreign_after=9),
        "figures for /metrics": store.jobs.figures,
        "open in MLflow": lambda: store.jobs.maybe_open_in_mlflow(within=86_400),
        "versions: first page": store.embeddings.list,
        "versions: of a data set": lambda: store.embeddings.list(dataset="papers"),
        "versions: unfinished": store.embeddings.unfinished,
        "versions: expired": lambda: store.embeddings.expired(keep=100_000, seconds=0),
        "versions: jobs of deleted": lambda: store.embeddings.jobs_of_deleted(100),
        "versions: catalog after a change": store.embeddings.snapshot,
    }


def one_job(store: Store) -> None:
    job, _ = store.jobs.submit(NewJob("train", SPEC, "x", dataset="digits", owner=KEYS[0]), max_active=100)
    claimed = store.claims.claim("d", kinds=("train",), lease_seconds=9)
    assert claimed is not None
    store.claims.finish(Claim.on(claimed), "succeeded")
    store.jobs.delete(job.id)


def milliseconds(call: Callable[[], Any]) -> float:
    """The median."""
    times: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(times) < ROUNDS and (not times or time.perf_counter() < until):
        begun = time.perf_counter()
        call()
        times.append(1_000 * (time.perf_counter() - begun))
    return statistics.median(times)


def fill(store: Store, count: int) -> None:
    """Ended jobs of ten keys over a year, a version of every twentieth, one version deleted."""
    dice = random.Random(0)
    ids = sorted(new_id() for _ in range(count))
    begun = time.time() - 365 * 86_400
    for start in range(0, count, 5_000):
        part = list(enumerate(ids[start : start + 5_000], start))
        with writing(store.database) as connection:
            connection.execute(insert(jobs), [job_row(job_id, at, begun, dice) for at, job_id in part])
            told = [event_row(job_id, seq) for _, job_id in part for seq in range(1, EVENTS + 1)]
            connection.execute(insert(events), told)
            made = [version_row(job_id, at, begun) for at, job_id in part if at % PER_VERSION == 0]
            connection.execute(insert(embeddings), made)
    one = store.embeddings.list(limit=1)[0][0].version
    gone = job_row(new_id(), 1, begun, dice) | {"kind": "publish", "spec": {"version": one}}
    with writing(store.database) as connection:
        connection.execute(insert(jobs), [gone])
        connection.exec_driver_sql("INSERT INTO deleted_versions VALUES ('gone', ?)", (time.time(),))


def job_row(job_id: str, at: int, begun: float, dice: random.Random) -> dict[str, Any]:
    state = dice.choices(["succeeded", "failed", "cancelled"], [8, 1, 1])[0]
    moment = begun + 300.0 * at
    return {
        "id": job_id, "kind": "publish" if at % PER_VERSION == 1 else "train", "state": state, "attempt": 1,
        "priority": 0, "name": f"job {at}", "owner": dice.choice(KEYS), "spec": SPEC, "spec_hash": "x" * 64,
        "dataset": dice.choice(["digits", "papers", "cora"]), "memory_bytes": 10**9, "created": moment,
        "not_before": moment, "started": moment, "ended": moment + 60, "infra_retries": 0, "oom_retries": 0,
        "progress": PROGRESS, "metrics": {"loss": 1.0}, "result": {"embeddings": True}, "relay": {"offset": 9_000},
        "last_seq": EVENTS,
    }  # fmt: skip


def event_row(job_id: str, seq: int) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "seq": seq,
        "time": 1.0,
        "type": "epoch",
        "epoch": seq,
        "data": {"metrics": {"loss": 1.0}},
    }


def version_row(job_id: str, at: int, begun: float) -> dict[str, Any]:
    moment = begun + 300.0 * at
    about = {"rows": 2_708, "dim": 512, "dtype": "float32", "classes": 7, "bytes": 6_000_000, "note": "x" * 300}
    return {
        "version": job_id, "job_id": new_id(), "state": "ready", "owner": KEYS[at % 10], "name": None,
        "dataset": "papers", "dataset_name": "papers", "created": moment, "published": moment, "about": about,
        "metrics": {"accuracy": 0.8}, "indexes": {},
    }  # fmt: skip


if __name__ == "__main__":
    main()
