"""Memory of many trials on one large graph: they share its pages, so ten do not take ten times as much.

    python tests/benchmarks/shared_data.py [--trials 1 10] [--nodes 400000] [--features 640] [--minutes 2]

Writes an imported graph of nodes × features × 4 bytes (1 GB), then runs sweeps with so many trials at a time and looks
at their processes while they train: proportional memory (a page that k processes share counts 1/k in each), summed, and
the part that is the graph's own files. A trial that copied its graph would add the whole of it each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.graph import Graph
from tuner.config import parse_sweep
from tuner.sweep import run_sweep

MB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--features", type=int, default=640)
    parser.add_argument("--minutes", type=float, default=2.0, help="that each sweep may take")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NML_HOME"] = folder
        size = write_graph(Path(folder) / "graphs" / "large", options.nodes, options.features)
        print(f"graph on disk: {size / MB:.0f} MB")
        peaks = {count: peak(Path(folder) / f"sweep-{count}", count, options.minutes) for count in options.trials}
    print("| trials at a time | memory of their processes, MB | of it the graph's files | a copy each would add |")
    print("|---|---|---|---|")
    for count, (total, graph) in peaks.items():
        print(f"| {count} | {total / MB:.0f} | {graph / MB:.0f} | {count * size / MB:.0f} |")


def write_graph(directory: Path, nodes: int, features: int) -> int:
    chance = np.random.default_rng(0)
    edges = chance.integers(nodes, size=(2, 4 * nodes))
    directory.parent.mkdir(parents=True)
    Graph.from_edges(edges, chance.random((nodes, features), dtype=np.float32), name="large").save(directory)
    return sum(file.stat().st_size for file in directory.glob("*.npy"))


def peak(directory: Path, count: int, minutes: float) -> tuple[int, int]:
    """Largest sum over the trials' processes while all of them train: all memory, and that of the graph's files."""
    spec = parse_sweep(
        {
            "base": {
                "data": {"name": "imported", "imported": "large"}, "encoder": {"hidden": 32, "dim": 32},
                "method": {"metric": {"hidden": 32}}, "run": {"track": False}, "optimiser": {"epochs": 50},
                "sampling": {"negatives": "batch", "batch_size": 512, "num_neighbors": [5, 5]},
            },
            "space": {"method.temperature": {"kind": "uniform", "low": 0.2, "high": 1}},
            "objective": "i_nml", "algorithm": "random", "scheduler": {"kind": "none"}, "trials": count,
            "concurrency": count, "budget_minutes": minutes,
        }
    )  # fmt: skip
    found: list[tuple[int, int]] = [(0, 0)]
    workers: set[int] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            if len(workers) == count:
                sums = [memory(pid) for pid in workers]
                found.append((sum(total for total, _ in sums), sum(graph for _, graph in sums)))

    def note(event: dict[str, Any]) -> None:
        if event["type"] == "running":
            workers.add(event["pid"])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        run_sweep(spec, directory, on_event=note)
    except Exception as error:  # its time is over before any trial reports: that is all right here
        print(f"  {count} trials at a time: {error}")
    finally:
        over.set()
        watcher.join()
    print(f"  {count} trials at a time: {len(found) - 1} looks, {json.dumps(max(found))} bytes at most", flush=True)
    return max(found)


def memory(pid: int) -> tuple[int, int]:
    """Proportional bytes of a process, and of them those of .npy files."""
    total = graph = 0
    of_graph = False
    try:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                of_graph = line.endswith(".npy")
            elif line.startswith("Pss:"):
                size = 1024 * int(line.split()[1])
                total += size
                graph += size * of_graph
    except (FileNotFoundError, ProcessLookupError):
        pass
    return total, graph


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s")
