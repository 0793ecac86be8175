"""`make bench-scale`: sampled training and export as the graph grows, and exact contrast on a large real graph.

    python tests/benchmarks/scale.py growth    batch scope: an epoch, export and evaluation at 62,500 to 1,000,000 nodes
    python tests/benchmarks/scale.py exact     exact scope: an epoch with T_M = 2 on Physics (needs NML_DATA)
    python tests/benchmarks/scale.py disk      out of core: Parquet tables of 5,000,000 nodes: import, train, export

Each measurement runs in a process of its own; memory is its peak resident set (VmHWM, which counts pages of mapped
files too) and, where said so, what it adds to the process with the graph loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GROWTH = (62_500, 250_000, 1_000_000)
SMALL_MODEL = {
    "encoder": {"hidden": 256, "dim": 128}, "method": {"inner_steps": 2, "metric": {"hidden": 128}},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["growth", "exact", "disk"])
    parser.add_argument("--nodes", type=int, default=5_000_000, help="for disk")
    parser.add_argument("--exported", type=int, default=200_000, help="rows exported, for disk")
    parser.add_argument("--batches", type=int, default=200, help="training steps, for disk")
    parser.add_argument(
        "--folder", type=Path, help="for disk: keep tables and graph here instead of a temporary folder"
    )
    parser.add_argument("--batch-size", type=int, help="for exact: encode by batches instead of whole")
    parser.add_argument("--job", help="internal: one measurement, as JSON")
    options = parser.parse_args()
    if options.job:
        job = json.loads(options.job)
        print("RESULT " + json.dumps(JOBS[job.pop("do")](**job)))
        return
    {"growth": growth, "exact": exact, "disk": disk}[options.what](options)


def growth(options: argparse.Namespace) -> None:
    print("| nodes | directed edges | peak RSS | above the loaded graph | bytes per node above | train | export |")
    print("|---|---|---|---|---|---|---|")
    for nodes in GROWTH:
        found = measured(do="one_epoch", nodes=nodes)
        above = found["peak"] - found["loaded"]
        print(
            f"| {nodes:,} | {found['edges']:,} | {found['peak'] / 2**20:,.0f} MB | {above / 2**20:,.0f} MB | "
            f"{above / nodes:,.0f} | {nodes / found['train_seconds']:,.0f} nodes/s | "
            f"{nodes / found['export_seconds']:,.0f} nodes/s |",
            flush=True,
        )


def one_epoch(nodes: int) -> dict[str, Any]:
    """A whole run of one epoch in scope batch, evaluation included."""
    import trainer
    from trainer.config import parse_spec
    from trainer.data.datasets import load
    from trainer.planning.memory import peak_rss
    from trainer.run.directory import read_events

    spec = parse_spec(
        {
            **SMALL_MODEL,
            "data": {"name": "synthetic", "synthetic": {"nodes": nodes, "classes": 10, "features": 128}},
            "optimiser": {"epochs": 1}, "sampling": {"negatives": "batch", "batch_size": 2048},
            "evaluation": {"figures": False, "cluster_seeds": 1, "probe_epochs": 100, "max_pairs_nodes": 5_000},
            "run": {"track": False},
        }
    )  # fmt: skip
    graph = load(spec.data)
    loaded = peak_rss()
    with tempfile.TemporaryDirectory() as folder:
        result = trainer.fit(spec, Path(folder) / "run", graph=graph)
        phases = {event["name"]: event["time"] for event in read_events(result.directory) if event["type"] == "phase"}
    return {
        "edges": graph.num_edges, "loaded": loaded, "peak": peak_rss(),
        "train_seconds": result.metrics["train_seconds"], "export_seconds": phases["evaluate"] - phases["export"],
    }  # fmt: skip


def exact(options: argparse.Namespace) -> None:
    found = measured(do="exact_epoch", batch_size=options.batch_size)
    above = found["peak"] - found["loaded"]
    how = f"batches of {options.batch_size}, gradients cached" if options.batch_size else "whole graph at once"
    print(f"Physics, {found['nodes']:,} nodes, preset nml (d = 512), T_M = 2, encoded by {how}:")
    print(f"  one exact epoch in {found['seconds']:.0f} s, {above / 2**30:.2f} GB above graph and features "
          f"({found['loaded'] / 2**30:.2f} GB resident before). Dense autograd would keep 12 N×N matrices: "
          f"{12 * 4 * found['nodes'] ** 2 / 2**30:.0f} GB.")  # fmt: skip


def exact_epoch(batch_size: int | None) -> dict[str, Any]:
    from trainer.config import parse_spec
    from trainer.data.datasets import load
    from trainer.learning.learner import Learner
    from trainer.planning.memory import peak_rss
    from trainer.presets import merged, preset_document
    from trainer.spec.data import DataSpec

    graph = load(DataSpec(name="physics"))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading: it is not what is measured here
    loaded = peak_rss()
    sampling: dict[str, Any] = {"negatives": "graph", "keep_mb": 0}
    if batch_size:
        sampling |= {"batch_size": batch_size, "num_neighbors": [-1, -1]}
    document = merged(preset_document("nml", "physics"), {"method": {"inner_steps": 2}, "sampling": sampling})
    learner = Learner(parse_spec(document), graph)
    started = time.perf_counter()
    for step in learner.steps_of(1):
        learner.step(step)
    return {"nodes": graph.num_nodes, "seconds": time.perf_counter() - started, "loaded": loaded, "peak": peak_rss()}


def disk(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "edges.parquet").exists():
            measured(do="write_tables", folder=str(folder), nodes=options.nodes)
        size = sum(file.stat().st_size for file in folder.glob("*.parquet"))
        print(f"{options.nodes:,} nodes × 128 float32 features and {5 * options.nodes:,} edges, {size / 1e9:.1f} GB of "
              "Parquet:", flush=True)  # fmt: skip
        found = measured(do="import_tables", folder=str(folder))
        print(f"  import: {found['seconds']:.0f} s, peak RSS {found['peak'] / 1e9:.2f} GB", flush=True)
        found = measured(do="train_and_export", folder=str(folder), batches=options.batches, exported=options.exported)
        print(
            f"  {options.batches} batches of 2,048: {found['train_seconds']:.0f} s; {options.exported:,} exported rows "
            f"{found['export_seconds']:.0f} s; peak RSS {found['peak'] / 1e9:.2f} GB"
        )


def write_tables(folder: str, nodes: int) -> dict[str, Any]:
    """Random tables in pieces: what matters here is their size."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    names = [f"f{k}" for k in range(128)]
    schema = pa.schema([("id", pa.int64()), *((name, pa.float32()) for name in names)])
    with pq.ParquetWriter(Path(folder) / "nodes.parquet", schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, nodes, 100_000):
            count = min(100_000, nodes - start)
            x = rng.standard_normal((128, count), dtype=np.float32)
            writer.write_table(pa.table([pa.array(np.arange(start, start + count)), *x], schema=schema))
    partial = Path(folder) / "edges.partial"
    with pq.ParquetWriter(partial, pa.schema([("source", pa.int64()), ("target", pa.int64())])) as writer:
        for start in range(0, 5 * nodes, 1_000_000):
            ends = rng.integers(nodes, size=(2, min(1_000_000, 5 * nodes - start)))
            writer.write_table(pa.table({"source": ends[0], "target": ends[1]}))
    os.rename(partial, Path(folder) / "edges.parquet")
    return {}


def import_tables(folder: str) -> dict[str, Any]:
    from trainer.data.importing.graph import import_graph
    from trainer.planning.memory import peak_rss
    from trainer.spec.data import DataSpec, FilesSpec

    files = FilesSpec(nodes=f"{folder}/nodes.parquet", edges=f"{folder}/edges.parquet")
    started = time.perf_counter()
    import_graph(DataSpec(name="files", files=files), "large", home=Path(folder) / "home", replace=True)
    return {"seconds": time.perf_counter() - started, "peak": peak_rss()}


def train_and_export(folder: str, batches: int, exported: int) -> dict[str, Any]:
    from trainer.config import parse_spec
    from trainer.data.datasets import load
    from trainer.export.embeddings import export_embeddings
    from trainer.learning.learner import Learner
    from trainer.planning.memory import peak_rss

    sampling = {"negatives": "batch", "batch_size": 2048, "num_neighbors": [10, 10]}
    spec = parse_spec(SMALL_MODEL | {"data": {"name": "imported", "imported": "large"}, "sampling": sampling})
    graph = load(spec.data, home=Path(folder) / "home")
    learner = Learner(spec, graph)
    started = time.perf_counter()
    for _, step in zip(range(batches), learner.steps_of(1), strict=False):
        learner.step(step)
    trained = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as out:
        rows = range(min(exported, graph.num_nodes))
        export_embeddings(Path(out), learner.encoder, graph, graph_sha256=graph.fingerprint(), rows=rows)
    return {
        "train_seconds": trained - started, "export_seconds": time.perf_counter() - trained, "peak": peak_rss(),
    }  # fmt: skip


JOBS = {job.__name__: job for job in (one_epoch, exact_epoch, write_tables, import_tables, train_and_export)}


def measured(**job: Any) -> dict[str, Any]:
    """Run one job in a fresh process and return what it found."""
    command = [sys.executable, __file__, "growth", "--job", json.dumps(job)]
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        sys.exit(f"{job}: ended with code {done.returncode}\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


if __name__ == "__main__":
    main()
