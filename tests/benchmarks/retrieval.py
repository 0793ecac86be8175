"""Embeddings over HTTP at full size, side by side with a bare FastAPI route and with raw FAISS and numpy, in one run.

    python tests/benchmarks/retrieval.py                     1,000,000 × 256: memory, lookup, batch, neighbours
    python tests/benchmarks/retrieval.py --rows 20000 lookup

Ratios are what counts. Requests come from a process of their own (tests/benchmarks/http_load.py). What search costs
without HTTP, and what an index saves, is in tests/benchmarks/search.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # it is run as a script, from anywhere
os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))  # the same for the service and for raw products

import numpy as np  # noqa: E402
import psutil  # noqa: E402

from service.client import Client  # noqa: E402
from service.embeddings.jobs import about_version  # noqa: E402
from service.embeddings.table import Table  # noqa: E402
from service.settings import Settings  # noqa: E402
from service.store import open_store  # noqa: E402
from tests.benchmarks.search import VERSION, make_table, raw_numpy, seconds_in_turn  # noqa: E402
from tests.benchmarks.service import ask, bare_route  # noqa: E402
from tests.faults.services import Service, wait_for  # noqa: E402
from tests.service.api.embeddings.published import put_job  # noqa: E402

ROUNDS, SECONDS, BATCH = 7, 3.0, 1_000
PARTS = ("memory", "lookup", "batch", "neighbours")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, choices=[*PARTS, PARTS], metavar="part")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nml-bench-") as place:
        folder = Path(place)
        empty = resident(folder / "empty", None)[0]
        make_home(folder / "home", options.rows, options.dim)
        if "memory" in options.parts:
            memory(folder / "home", empty)
        with serving(folder / "home") as service, bare_route() as bare:
            at = f"{service.url}/v1/embeddings/{VERSION}"
            if "lookup" in options.parts:
                lookup(at, bare, options.rows)
            if "batch" in options.parts:
                batch(at, options.rows)
            if "neighbours" in options.parts:
                neighbours(service)


def memory(home: Path, empty: float) -> None:
    """What a table adds to an API process: when it is ready, and after one lookup of a thousand rows."""
    ready, used = resident(home, VERSION)
    print(f"memory of the API process: {empty:.0f} MB without a table, {ready:.0f} MB ready, {used:.0f} MB after use")
    print(f"growth until ready: {ready - empty:.0f} MB; after a lookup of {BATCH:,} rows: {used - empty:.0f} MB")


def lookup(at: str, bare: str, rows: int) -> None:
    """Single vectors as JSON, each request another node, and the bare route's fixed vector, in turns."""
    compare("single lookup", "bare route", rate_of(f"{at}/nodes/{{}}", numbers=rows), rate_of(f"{bare}vector"))


def batch(at: str, rows: int) -> None:
    """Vectors per second: a thousand ids in one request, raw, and single JSON lookups."""
    options = {"body": '{"ids":[{}]}', "many": BATCH, "numbers": rows, "accept": "application/octet-stream"}
    batches = rate_of(f"{at}/lookup", **options)
    single = rate_of(f"{at}/nodes/{{}}", numbers=rows)
    compare("vectors in raw batches", "single lookups", lambda: BATCH * batches(), single)


def rate_of(url: str, **options: Any) -> Callable[[], float]:
    """RequestMetrics answers per second."""
    return lambda: float(ask(url, SECONDS, **options)["per_second"])


def neighbours(service: Service) -> None:
    """Seconds of an exact search over HTTP, over those of raw FAISS and numpy on the same vectors, normalised."""
    import faiss

    table = Table.open(service.settings.version_directory(VERSION))
    unit = table.vectors * table.inverse_norms[:, None]  # raw FAISS has no cosine of vectors as they are
    with service.client(timeout=600) as client:
        for count in (1, 100):
            queries = unit[:: len(unit) // count][:count].copy()

            def ours(client: Client = client, queries: np.ndarray = queries) -> None:
                client.vectors.neighbors(VERSION, vectors=queries, k=10, backend="exact")

            def raw_faiss(queries: np.ndarray = queries) -> None:
                faiss.knn(queries, unit, 10, metric=faiss.METRIC_INNER_PRODUCT)

            taken = seconds_in_turn(5, ours, raw_faiss, lambda queries=queries: raw_numpy(unit, queries, 10))
            best = min(taken[1:])
            print(
                f"{count} queries, k = 10: HTTP {taken[0]:.3f} s, FAISS {taken[1]:.3f} s, numpy {taken[2]:.3f} s; "
                f"over FAISS {taken[0] / taken[1]:.2f}, over the faster of both {taken[0] / best:.2f}"
            )


def compare(ours: str, theirs: str, measure_ours: Callable[[], float], measure_theirs: Callable[[], float]) -> None:
    measure_ours(), measure_theirs()  # warm both
    ratios = []
    for _ in range(ROUNDS):
        a, b = measure_ours(), measure_theirs()
        ratios.append(a / b)
        print(f"{ours} {a:9.0f}/s   {theirs} {b:7.0f}/s   ratio {ratios[-1]:.2f}")
    print(f"{ours} over {theirs}, median of {ROUNDS}: {statistics.median(ratios):.2f}")


def make_home(home: Path, rows: int, dim: int) -> None:
    """A home with one published version."""
    settings = Settings(home=home)
    store = open_store(settings)
    table, _ = make_table(settings.embeddings, rows, dim, 0)
    shutil.rmtree(settings.embeddings / "run")
    put_job(store, VERSION)
    made = store.embeddings.get(VERSION)
    assert made is not None
    store.embeddings.finish(VERSION, made.job_id, about=about_version(table.info))
    store.close()


@contextmanager
def serving(home: Path) -> Iterator[Service]:
    """The API alone, ready."""
    service = Service(home, role="api", rate_per_second=1e6, rate_burst=10**6)
    service.start()
    try:
        wait_for(lambda: service.answers("/livez"), 120, service.last_words)
        yield service
    finally:
        service.end()


def resident(home: Path, version: str | None) -> tuple[float, float]:
    """Megabytes of the API process when it answers, and after a lookup of many rows."""
    with serving(home) as service:
        assert service.process is not None
        process = psutil.Process(service.process.pid)

        def size() -> float:
            everyone = [process, *process.children(recursive=True)]
            return max(one.memory_info().rss for one in everyone) / 1e6

        if version is None:
            return size(), size()
        with service.client() as client:
            client.vectors.vector(version, 0)
            ready = size()
            client.vectors.lookup(version, list(range(BATCH)))
        return ready, size()


if __name__ == "__main__":
    main()
