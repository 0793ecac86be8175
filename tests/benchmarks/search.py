"""Search of one large table: exact against raw FAISS and raw numpy on the same vectors, and the indexes against exact.

    python -m tests.benchmarks.search                    # 1,000,000 × 256: 2 GB of temporary files, about ten minutes
    python -m tests.benchmarks.search --rows 50000       # a minute

Ratios are of medians of times taken in turn, so that whatever else the machine does falls on all alike. Ours is by
cosine (it divides by the norms, rescores and sorts); the raw ones are inner products on the same mapped vectors. Raw
numpy forms the whole product, a group of queries at a time, and takes the largest by argpartition; it is left out of
the largest number of queries, where it takes longest and tells least. The last line sums up for k = 10.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.embeddings.approximate import build_index
from service.embeddings.publish import build_version
from service.embeddings.search import Searcher
from service.embeddings.table import Table
from trainer.files.atomic import sha256

VERSION = "01k9bench00000000000000000"
CENTRES = 1000
K = 10
RAW_BYTES = 256 << 20  # of products that raw numpy holds at once


def clusters(random: np.random.Generator, centres: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """Rows around centres, some tighter than others, with a spectrum that falls like that of learned embeddings."""
    dim = centres.shape[1]
    spectrum = ((1 + np.arange(dim)) ** -0.5).astype(np.float32)
    spread = random.uniform(0.3, 1.2, (rows, 1)).astype(np.float32)
    return centres[random.integers(0, len(centres), rows)] + (
        random.standard_normal((rows, dim), dtype=np.float32) * spectrum * spread
    )


def make_table(home: Path, rows: int, dim: int, queries: int) -> tuple[Table, NDArray[np.float32]]:
    """A published version, written in pieces, and queries from the same clusters that are not in it."""
    random = np.random.default_rng(0)
    spectrum = ((1 + np.arange(dim)) ** -0.5).astype(np.float32)
    centres = 2 * spectrum * random.standard_normal((CENTRES, dim), dtype=np.float32)
    export = home / "run" / "embeddings"
    export.mkdir(parents=True)
    vectors = np.lib.format.open_memmap(export / "vectors.npy", "w+", np.float32, (rows, dim))
    for start in range(0, rows, 1 << 15):
        vectors[start : start + (1 << 15)] = clusters(random, centres, min(1 << 15, rows - start))
    vectors.flush()
    del vectors
    np.save(export / "ids.npy", np.arange(rows))
    manifest = {
        "rows": rows, "dim": dim, "dtype": "float32", "id_type": "int", "dataset": "benchmark", "epoch": 1,
        "model_sha256": "0" * 64, "graph_sha256": "1" * 64,
        "files": {name: sha256(export / name) for name in ("vectors.npy", "ids.npy")},
    }  # fmt: skip
    (export / "manifest.json").write_text(json.dumps(manifest))
    (home / "run" / "spec.json").write_text("{}")
    build_version(export, home / "run" / "spec.json", home / VERSION, version=VERSION)
    return Table.open(home / VERSION), clusters(random, centres, queries)


def seconds_in_turn(repeats: int, *contenders: Callable[[], object], warm_up: bool = True) -> list[float]:
    """Median seconds of each, one after the other in every round; a round before them only warms up."""
    times: list[list[float]] = [[] for _ in contenders]
    for round_ in range(-warm_up, repeats):
        for contender, taken in zip(contenders, times, strict=True):
            start = time.perf_counter()
            contender()
            if round_ >= 0:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def raw_numpy(vectors: NDArray[np.float32], queries: NDArray[np.float32], k: int) -> None:
    group = max(1, RAW_BYTES // (4 * len(vectors)))
    for start in range(0, len(queries), group):
        products = queries[start : start + group] @ vectors.T
        best = np.argpartition(products, len(vectors) - k, axis=1)[:, -k:]
        np.sort(np.take_along_axis(products, best, 1), axis=1)


def compare_exact(searcher: Searcher, table: Table, queries: NDArray[np.float32], ks: list[int]) -> str:
    """Prints a table; returns its summary: how many times the seconds of raw FAISS, by number of queries."""
    import faiss

    print(f"{'queries':>8} {'k':>5} {'exact ms':>10} {'faiss ms':>10} {'numpy ms':>10} {'/faiss':>7} {'/numpy':>7}")
    vectors = np.asarray(table.vectors)
    ratios = []
    for count, repeats in ((1, 9), (10, 5), (100, 3), (1000, 2)):
        if count > len(queries):
            break
        some = queries[:count]
        for k in ks:
            contenders = [
                lambda some=some, k=k: searcher.search(some, k, backend="exact"),
                lambda some=some, k=k: faiss.knn(some, vectors, k, faiss.METRIC_INNER_PRODUCT),
                lambda some=some, k=k: raw_numpy(vectors, some, k),
            ]
            many = count == 1000
            ours, raw, *slow = seconds_in_turn(repeats, *contenders[: 2 if many else 3], warm_up=not many)
            by_numpy = [f"{1e3 * slow[0]:.1f}", f"{ours / slow[0]:.2f}"] if slow else ["", ""]
            print(
                f"{count:>8} {k:>5} {1e3 * ours:>10.1f} {1e3 * raw:>10.1f} {by_numpy[0]:>10} "
                f"{ours / raw:>7.2f} {by_numpy[1]:>7}",
                flush=True,
            )
            if k == K:
                ratios.append(f"{ours / raw:.2f} (q={count})")
    return "exact / raw FAISS " + ", ".join(ratios)


def compare_indexes(searcher: Searcher, table: Table, queries: NDArray[np.float32], kinds: list[str]) -> str:
    """Prints a table; returns its summary: recall@10 and queries/s of each index, and of exact search."""
    truth = searcher.search(queries, K, backend="exact").rows
    print(
        f"\n{'backend':>8} {'build s':>8} {'MB':>6} {'of vectors':>10} {'recall@10':>9} {'(sample)':>8} {'effort':>6} "
        f"{'q/s by 1':>9} {'q/s by 100':>10} {'× exact':>8} {'× exact':>8}"
    )

    def rate(backend: str, batch: int, limit: int) -> float:
        asked = queries[:limit]

        def all_of_them() -> None:
            for start in range(0, len(asked), batch):
                searcher.search(asked[start : start + batch], K, backend=backend)  # type: ignore[arg-type]

        return len(asked) / seconds_in_turn(3, all_of_them)[0]

    exact = rate("exact", 1, 5), rate("exact", 100, 100)
    print(f"{'exact':>8} {'':>8} {'':>6} {'':>10} {1:>9.3f} {'':>8} {'':>6} {exact[0]:>9.1f} {exact[1]:>10.1f}")
    parts = [f"exact {exact[0]:.1f} queries/s one by one, {exact[1]:.1f} by hundreds"]
    for kind in kinds:
        about = build_index(table, kind)  # type: ignore[arg-type]
        found = searcher.search(queries, K, backend=kind).rows  # type: ignore[arg-type]
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True)) / truth.size
        rates = rate(kind, 1, len(queries)), rate(kind, 100, len(queries))
        print(
            f"{kind:>8} {about['seconds']:>8.1f} {about['bytes'] / 1e6:>6.0f} "
            f"{about['bytes'] / table.vectors.nbytes:>10.2f} {hits:>9.3f} {about['recall_at_10']:>8.3f} "
            f"{about['effort']:>6} {rates[0]:>9.0f} {rates[1]:>10.0f} "
            f"{rates[0] / exact[0]:>8.0f} {rates[1] / exact[1]:>8.1f}",
            flush=True,
        )
        parts.append(f"{kind} recall@10 {hits:.3f}, {rates[0]:.0f} and {rates[1]:.0f} queries/s")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--queries", type=int, default=1000, help="at most so many at once (1, 10, 100, 1000)")
    parser.add_argument("--k", type=int, nargs="+", default=[K], help="of the exact searches, e.g. --k 10 100")
    parser.add_argument("--kinds", nargs="*", default=["hnsw", "ivf"], choices=["hnsw", "ivf"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="search-") as home:
        table, queries = make_table(Path(home), options.rows, options.dim, options.queries)
        searcher = Searcher(table, use_index_from=0)
        print(f"{options.rows:,} × {options.dim}\n")
        parts = [f"{options.rows:,} × {options.dim}, k={K}"]
        parts.append(compare_exact(searcher, table, queries, options.k))
        parts.append(compare_indexes(searcher, table, queries, options.kinds))
        print("\n" + "; ".join(parts))


if __name__ == "__main__":
    main()
