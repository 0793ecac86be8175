"""Batches per second of our sampler against torch-sparse, behind the same loader, side by side in one run.

Prints ratios; batches per second on this or any machine are beside the point. Times are medians over interleaved
repeats of a few batches each. PubMed and Computers are measured too where NML_DATA holds them. The profile tells where
a batch of ours spends its time.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import os
import pstats
import statistics
import time

import torch

from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.data.sources.synthetic import generate
from trainer.errors import TrainerError
from trainer.sampling import csr
from trainer.sampling.backends import available
from trainer.sampling.batches import Batches
from trainer.spec.data import DataSpec, SyntheticSpec

FAN_OUTS = [(10, 10), (15, 10), (25, 10), (10, 10, 10), (-1, -1)]
BATCHES = 8  # of an epoch, per repeat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=250_000, help="of the synthetic graph, with 5 edges for each")
    parser.add_argument("--batch-size", type=int, default=1_024)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    others = [name for name in available() if name != "csr"]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batches of {options.batch_size} seeds,")
    print(f"medians of {options.repeats} × {BATCHES} batches; backends: {', '.join(available())}")
    if not others:
        print("Neither torch-sparse nor pyg-lib is installed: there is nothing to compare with.")
    synthetic = generate(SyntheticSpec(nodes=options.nodes, degree=10, features=8, active_features=1))
    for graph in [synthetic, *public()]:
        print(f"\n{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges")
        for fan_outs in FAN_OUTS:
            compare(graph, fan_outs, options.batch_size, options.repeats)
    profile(synthetic, options.batch_size)


def public() -> list[Graph]:
    """PubMed and Computers, where NML_DATA holds them."""
    if "NML_DATA" not in os.environ:
        print("PubMed and Computers are left out: NML_DATA is not set.")
        return []
    graphs = []
    for name in ("pubmed", "computers"):
        try:
            graphs.append(load(DataSpec.model_validate({"name": name})))
        except TrainerError as error:
            print(f"{name} is left out: {error}")
    return graphs


def compare(graph: Graph, fan_outs: tuple[int, ...], batch_size: int, repeats: int) -> None:
    candidates = {
        name: Batches(graph, batch_size=batch_size, num_neighbors=fan_outs, seed=0, backend=name)
        for name in available()
    }
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 1):
        for name, batches in candidates.items():  # in turns, so that a noisy neighbour disturbs all alike
            epoch = batches.epoch(repeat)
            start = time.perf_counter()
            count = sum(1 for _ in itertools.islice(epoch, BATCHES))
            if repeat:  # the first one warms up
                seconds[name].append((time.perf_counter() - start) / count)
    rates = {name: 1 / statistics.median(values) for name, values in seconds.items()}
    ratios = "".join(f", {rates['csr'] / rates[name]:6.2f} × {name}" for name in rates if name != "csr")
    print(f"  num_neighbors {fan_outs!s:12} csr {rates['csr']:7.1f} batches a second{ratios}", flush=True)


def profile(graph: Graph, batch_size: int) -> None:
    """Shares of the time of our batches, by function of ours and what it calls."""
    batches = Batches(graph, batch_size=batch_size, num_neighbors=(10, 10), seed=0)
    list(itertools.islice(batches.epoch(0), BATCHES))
    profiler = cProfile.Profile()
    profiler.enable()
    list(itertools.islice(batches.epoch(1), 50))
    profiler.disable()
    spent: dict[str, float] = {}  # seconds in a function and all it calls; of namesakes, the outermost
    for (_, _, name), (_, _, _, cumulative, _) in pstats.Stats(profiler).stats.items():
        spent[name] = max(cumulative, spent.get(name, 0.0))
    whole = spent["__next__"]
    sampler = csr.CsrSampler
    parts = {
        "drawing: hashes and Floyd's rule": spent[csr.choose.__name__],
        "positions of the edges taken": spent[csr.choose_edges.__name__] - spent[csr.choose.__name__],
        "finding and numbering new nodes": spent[sampler._place_new.__name__],
    }
    parts["sources, local numbers, joining"] = spent[sampler.sample_from_nodes.__name__] - sum(parts.values())
    parts["loader"] = whole - spent[sampler.sample_from_nodes.__name__]
    print(f"\nWhere a batch of ours spends its time on {graph.name}, num_neighbors (10, 10):")
    for name, part in parts.items():
        print(f"  {name:34} {part / whole:4.0%}")


if __name__ == "__main__":
    main()
