"""What a run is said to need, against what real runs take, and against the sizes that the code itself gives."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.evaluation import clustering, figures, links
from trainer.loss import bank, rowwise
from trainer.methods import nml
from trainer.nn import encoder
from trainer.planning import estimate as module
from trainer.planning.estimate import estimate
from trainer.planning.plan import make_plan
from trainer.planning.reach import contrasted, reached
from trainer.planning.shape import GraphShape, shape_of, shape_of_data
from trainer.sampling.batches import Batches
from trainer.training import finish

GB = 10**9
SHAPE = GraphShape(10_000, 100_000, 300, nonzeros=100_000, classes=5)


def document(nodes: int, width: int, *, epochs: int = 1, degree: float = 10, **sampling) -> dict:
    return {
        "data": {"name": "synthetic", "synthetic": {"nodes": nodes, "features": 64, "degree": degree}},
        "encoder": {"hidden": width, "dim": width},
        "method": {"inner_steps": 1, "metric": {"hidden": width}},
        "optimiser": {"epochs": epochs},
        "sampling": sampling,
        "evaluation": {
            "probe_epochs": 20,
            "cluster_seeds": 1,
            "max_pairs_nodes": 5_000,
            "max_cluster_nodes": 30_000,
            "figures": False,
        },
        "run": {"track": False, "threads": 1},
    }


def planned(given: dict, **changes):
    spec = make_plan(parse_spec(given), SHAPE, 100 * GB).spec
    return spec.model_copy(update=changes)


RUN = """
import json, sys
import trainer
from trainer.config import parse_spec
result = trainer.fit(parse_spec(json.loads(sys.argv[1])), sys.argv[2], memory_limit=int(1e11))
print(result.metrics["peak_rss_mb"], result.metrics["estimated_mb"])
"""


@pytest.mark.parametrize(
    "nodes, width, sampling",
    [
        (1_000, 64, {"negatives": "graph"}),
        pytest.param(3_000, 512, {"negatives": "graph"}, marks=pytest.mark.slow),
        pytest.param(8_000, 128, {"negatives": "graph", "keep_mb": 0}, marks=pytest.mark.slow),
        pytest.param(20_000, 512, {"negatives": "batch", "batch_size": 4_096}, marks=pytest.mark.slow),
        pytest.param(60_000, 128, {"negatives": "batch", "batch_size": 2_048}, marks=pytest.mark.slow),
        pytest.param(
            150_000, 64, {"negatives": "batch", "batch_size": 2_048, "num_neighbors": [5, 5]}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_takes_what_was_estimated_within_a_factor_of_one_and_a_half(tmp_path, nodes, width, sampling):
    """Training, export and evaluation in a process of their own, told before the graph exists."""
    given = document(nodes, width, **sampling)
    plan = make_plan(parse_spec(given), shape_of_data(parse_spec(given).data), 100 * GB)
    command = [sys.executable, "-c", RUN, json.dumps(given), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    measured, told_at_start = (float(number) * 2**20 for number in done.stdout.split())
    told = plan.memory.total
    assert 1 / 1.5 < told / measured < 1.5, f"{told / 1e6:.0f} MB estimated, {measured / 1e6:.0f} measured"
    assert 1 / 1.5 < told_at_start / measured < 1.5
    libraries = plan.memory.parts["runtime"]
    if measured > 1.3 * libraries:  # enough beside them to compare the rest, which the formulas are about
        assert 1 / 2 < (told - libraries) / (measured - libraries) < 2


@pytest.mark.parametrize("nodes, degree", [(5_000, 10), (30_000, 4), (30_000, 30)])
@pytest.mark.parametrize("batch, fan_outs", [(1_024, [10, 10]), (2_048, [5, 5]), (256, [-1, -1]), (256, [5, 5, 5])])
def test_batches_are_as_large_as_told_before_they_are_sampled(nodes, degree, batch, fan_outs):
    given = document(nodes, 16, degree=degree, negatives="batch", batch_size=batch, num_neighbors=fan_outs)
    given["encoder"]["layers"] = len(fan_outs)
    spec = parse_spec(given)
    graph = load(spec.data)
    told = reached(spec, shape_of(graph))
    sampled = next(iter(Batches(graph, batch_size=batch, num_neighbors=fan_outs, seed=0).epoch(1)))
    for found, said in (
        (itertools.accumulate(sampled.nodes_per_hop), told.rows),
        (itertools.accumulate(sampled.edges_per_hop), told.edges),
    ):
        for actual, expected in zip(found, said, strict=True):
            assert 1 / 2 < expected / actual < 2


def test_a_whole_graph_is_reached_whole():
    told = reached(planned(document(10, 8, negatives="graph")), SHAPE)
    assert (told.rows, told.edges) == ((SHAPE.nodes,) * 3, (SHAPE.edges,) * 2)


@pytest.mark.parametrize(
    "sampling, workers, rows_and_columns",
    [
        ({"negatives": "graph"}, 1, (10_000, 10_000)),
        ({"negatives": "graph", "batch_size": 100}, 4, (2_500, 10_000)),
        ({"negatives": "batch", "batch_size": 100}, 1, (100, 100)),
        ({"negatives": "batch", "batch_size": 100}, 4, (100, 400)),
        ({"negatives": "batch", "batch_size": 10**6}, 1, (10_000, 10_000)),
        ({"negatives": "bank", "batch_size": 100}, 2, (100, 10_000)),
    ],
)
def test_who_meets_whom_depends_on_scope_and_workers(sampling, workers, rows_and_columns):
    given = document(10, 8, **sampling)
    given["run"]["workers"] = workers
    assert contrasted(make_plan(parse_spec(given), SHAPE, 100 * GB).spec, SHAPE) == rows_and_columns


def test_kept_tiles_take_what_they_may_or_what_there_is():
    n = SHAPE.nodes
    for keep, kept in ((0, 0), (100, 100 * 2**20), (10_000, 2 * 4 * n * n)):
        tiles = estimate(planned(document(10, 8, negatives="graph", tile=256, keep_mb=keep)), SHAPE).parts["tiles"]
        assert tiles == kept + 4 * 4 * 256**2


def test_parts_appear_where_their_cause_is():
    base = planned(document(10, 64, negatives="batch", batch_size=500))
    told = estimate(base, SHAPE).parts
    mapped = estimate(base, GraphShape(10_000, 100_000, 300, mapped=True)).parts
    assert told["tables"] == told["loading"] == 0 == mapped["graph"] == mapped["features"]
    assert told["features"] == 8 * SHAPE.nodes + 12 * SHAPE.nonzeros
    assert estimate(base, GraphShape(10_000, 100_000, 300)).parts["features"] == 4 * 10_000 * 300
    prepared = base.model_copy(update={"data": base.data.model_copy(update={"features": "rownorm"})})
    assert estimate(prepared, GraphShape(10_000, 100_000, 300, mapped=True)).parts["features"] == 4 * 10_000 * 300
    banked = estimate(planned(document(10, 64, negatives="bank", batch_size=500)), SHAPE).parts
    assert banked["tables"] > 2 * 4 * SHAPE.nodes * 64
    tracked = base.model_copy(update={"run": base.run.model_copy(update={"track": True})})
    assert estimate(tracked, SHAPE).parts["runtime"] > told["runtime"]


def test_held_out_edges_bring_the_edges_of_a_mapped_graph_into_memory():
    base = planned(document(10, 64, negatives="batch", batch_size=500))
    held = base.model_copy(update={"data": base.data.model_copy(update={"held_out_edges": 0.2})})
    shape = GraphShape(10_000, 100_000, 300, mapped=True, weighted=True)
    assert estimate(base, shape).parts["graph"] == 0
    pairs = 100_000 / 2 * 0.2 / 0.8
    assert estimate(held, shape).parts["graph"] == 8 * 10_000 + 12 * 100_000 + 16 * pairs
    in_memory = GraphShape(10_000, 100_000, 300, weighted=True)
    assert estimate(held, in_memory).parts["graph"] == estimate(base, in_memory).parts["graph"] + 16 * pairs


def test_a_run_that_only_reports_is_planned_like_one_that_exports():
    given = document(10, 64, negatives="graph")
    reports = given | {"run": given["run"] | {"export": False}, "evaluation": given["evaluation"] | {"watch_every": 2}}
    assert estimate(planned(given), SHAPE).parts == estimate(planned(reports), SHAPE).parts


def test_the_need_of_batches_does_not_grow_with_the_edges_of_a_mapped_graph():
    base = planned(document(10, 64, negatives="batch", batch_size=500))
    needs = [estimate(base, GraphShape(10**6, 10**7 * k, 100, mapped=True)).total for k in (1, 10, 100)]
    assert needs[2] < 1.1 * needs[0]


def test_memory_of_exact_contrast_grows_with_the_nodes_and_not_with_their_square():
    base = planned(document(10, 256, negatives="graph", keep_mb=0))
    parts = [estimate(base, GraphShape(n, 10 * n, 100)).parts for n in (10_000, 40_000)]
    for part in ("encoding", "views"):
        assert parts[1][part] == pytest.approx(4 * parts[0][part], rel=0.2)
    # The metric's activations are those of one piece of rows at either size, so contrast grows a little slower.
    assert 2.5 * parts[0]["contrast"] < parts[1]["contrast"] < 4.2 * parts[0]["contrast"]


def test_float64_takes_twice_as_much_for_numbers():
    single = planned(document(10, 256, negatives="graph"))
    double = single.model_copy(update={"run": single.run.model_copy(update={"dtype": "float64"})})
    one, two = (estimate(spec, SHAPE).parts for spec in (single, double))
    for part in ("optimiser", "encoding", "contrast"):
        assert two[part] == pytest.approx(2 * one[part], rel=0.05)


def test_the_peak_is_what_is_always_there_and_the_largest_phase():
    told = estimate(planned(document(10, 256, negatives="graph")), SHAPE)
    parts = dict(told.parts)
    always = parts["runtime"] + parts["graph"] + parts["features"]
    trained = parts["optimiser"] + parts["tables"] + parts["views"] + parts["tiles"]
    assert told.total == always + trained + parts["encoding"] + parts["contrast"]
    assert told.peak == "training"
    loading = module.Estimate(parts | {"loading": 50 * GB})
    assert (loading.total, loading.peak, loading.largest) == (always + 50 * GB, "loading", "loading")
    shown = json.loads(json.dumps(told.document()))
    assert shown["total"] == told.total
    assert shown["parts"] == parts
    assert set(shown["held"]) == set(parts)


def test_sizes_are_those_of_the_modules_they_describe():
    """Copied, because importing them takes seconds; a change there must be one here."""
    assert module._COMPARED_UP_TO == finish.COMPARED_UP_TO
    assert module._DRAWN_PAIRS == figures.PAIR_NODES
    assert module._FULL_KMEANS == clustering.FULL_UP_TO
    assert module._LINK_PAIRS == links.MAX_PAIRS
    assert nml._BANK_ROWS == bank._ROWS
    assert nml._ROWWISE == rowwise.BLOCK_BYTES
    assert module._SPARSE_COST == encoder._SPARSE_COST
