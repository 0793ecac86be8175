"""`python -m tests.benchmarks.sizing` (`make bench-sizing`): the sizing table of docs/operations.md.

memory   the trainer's own estimate (trainer.planning), which a job reserves; the graph uploaded, so that it is
         read from disk
disk     counted from what run, version and index consist of, and first compared with the files of a real run
time     of an epoch, measured here at a small size and scaled: by batches with N, exact contrast with N²
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

NODES = (3_000, 10_000, 50_000, 100_000, 1_000_000, 10_000_000)
DIMENSIONS = (128, 512)
DEGREE, FEATURES = 20, 128  # stored directed edges of a node, dense features
LIMIT = 64 * 10**9
EXACT_NODES, BATCH_NODES = 3_000, 16_000  # at which time is measured
INDEX_FROM = 200_000  # rows, NML_INDEX_MIN_ROWS
SAME = 0.05  # by which what is counted may differ from what is found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    speeds = {dim: (exact_speed(dim), batch_speed(dim)) for dim in DIMENSIONS}
    print(f"\n{DEGREE} edges and {FEATURES} features a node, all widths (encoder and metric) equal, one process")
    print(f"with {os.environ.get('OMP_NUM_THREADS') or os.cpu_count()} threads.\n")
    print("| nodes | dimension | contrast | memory of a job | run and version | index | graph | an epoch |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    for nodes in NODES:
        for dim in DIMENSIONS:
            print(row(nodes, dim, *speeds[dim]), flush=True)


def spec_of(dim: int, nodes: int, **sections: Any) -> Any:
    from trainer.config import parse_spec

    return parse_spec(
        {
            "data": {"name": "synthetic", "synthetic": {"nodes": nodes, "degree": DEGREE, "features": FEATURES}},
            "encoder": {"hidden": dim, "dim": dim}, "method": {"metric": {"hidden": dim}}, **sections,
        }
    )  # fmt: skip


def row(nodes: int, dim: int, exact: float, batch: float) -> str:
    from trainer.planning.plan import make_plan, size
    from trainer.planning.shape import GraphShape

    spec = spec_of(dim, 100)
    shape = GraphShape(nodes, DEGREE * nodes, FEATURES, mapped=True, classes=10)
    plan = make_plan(spec, shape, LIMIT)
    is_exact = plan.spec.sampling.negatives == "graph"
    seconds = exact * (nodes / EXACT_NODES) ** 2 if is_exact else batch * nodes / BATCH_NODES
    index = size(index_bytes(nodes, dim)) if nodes >= INDEX_FROM else "none"
    kept = run_bytes(nodes, dim, spec.run.keep_checkpoints)
    contrast = "exact" if is_exact else f"batches of {plan.spec.sampling.batch_size:,}"
    return (
        f"| {nodes:,} | {dim} | {contrast} | {size(plan.memory.total)} | {size(kept)} | {index} | "
        f"{size(graph_bytes(nodes))} | {duration(seconds)} |"
    )


def run_bytes(nodes: int, dim: int, checkpoints: int) -> int:
    """Vectors, ids and labels, which the version shares with the run; its inverse norms; encoder; checkpoints."""
    weights = 4 * (FEATURES * dim + dim * dim + 3 * dim)
    metric = 4 * (2 * dim * dim + 2 * dim)
    table = nodes * (4 * dim + 8 + 4 + 4)
    return table + weights + checkpoints * 3 * (weights + metric)  # Adam has two numbers for each weight


def index_bytes(nodes: int, dim: int) -> int:
    """hnsw: a byte for each number, its links, and what FAISS keeps of a row."""
    from service.embeddings.approximate import LINKS

    return nodes * (dim + 8 * LINKS + 24)


def graph_bytes(nodes: int) -> int:
    """An uploaded graph: features in float32, edges by 64-bit number, row starts, labels, ids."""
    return nodes * (4 * FEATURES + 8 * DEGREE + 8 + 8 + 8)


def exact_speed(dim: int) -> float:
    """Seconds of an epoch at EXACT_NODES, whole graph, every node against every node; compares the disk on the way."""
    found = measured(spec_of(dim, EXACT_NODES, optimiser={"epochs": 4}, run={"track": False, "checkpoint_every": 2}))
    told = run_bytes(EXACT_NODES, dim, 2)
    print(
        f"check: {EXACT_NODES:,} × {dim}: {found['bytes']:,} bytes found, {told:,} counted "
        f"({found['rest']:,} of logs, metrics and figures beside)",
        flush=True,
    )
    if abs(found["bytes"] - told) > SAME * told:
        raise SystemExit("what is counted is not what a run takes: run_bytes in this file is out of date")
    return float(found["seconds"])


def batch_speed(dim: int) -> float:
    """Seconds of an epoch at BATCH_NODES by batches."""
    sampling = {"negatives": "batch", "batch_size": 2_048}
    evaluation = {"figures": False, "cluster_seeds": 1, "probe_epochs": 10, "max_pairs_nodes": 1_000}
    run = {"track": False}
    spec = spec_of(dim, BATCH_NODES, optimiser={"epochs": 2}, sampling=sampling, evaluation=evaluation, run=run)
    return float(measured(spec)["seconds"])


def measured(spec: Any) -> dict[str, float]:
    """Train and publish in a folder of its own: seconds of the fastest epoch, bytes kept, and bytes of the rest."""
    import trainer
    from service.embeddings.publish import build_version
    from trainer.run.directory import read_events

    with tempfile.TemporaryDirectory() as folder:
        run, version = Path(folder) / "run", Path(folder) / "version"
        trainer.fit(spec, run)
        build_version(run / "embeddings", run / "spec.json", version, version="version")
        epochs = [event for event in read_events(run) if event["type"] == "epoch"]
        kept = {
            (found.st_dev, found.st_ino): found.st_size  # a file under two names counts once
            for parent in (run / "embeddings", run / "checkpoints", version)
            for path in parent.rglob("*")
            if path.is_file() and path.suffix in (".npy", ".safetensors") and (found := path.stat())
        }
        all_files = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        shown = sum(path.stat().st_size for path in run.rglob("*") if path.suffix in (".npy", ".safetensors"))
        seconds = min(float(event["metrics"]["seconds"]) for event in epochs)
        return {"seconds": seconds, "bytes": sum(kept.values()), "rest": all_files - shown}


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.1f} s"
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6_000
        else f"{seconds / 3600:.0f} h"
    )


if __name__ == "__main__":
    main()
