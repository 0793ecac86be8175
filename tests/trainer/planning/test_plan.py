"""What is decided before a run: from the graph's size, the memory there is, and what the user asked for."""

from __future__ import annotations

import itertools
import json

import pytest

import trainer
from trainer.config import parse_spec
from trainer.errors import OutOfMemory
from trainer.planning.estimate import estimate
from trainer.planning.plan import (
    EXACT_UP_TO,
    SMALLEST_BATCH,
    SMALLEST_TILE,
    make_plan,
    restore_plan,
    smaller,
)
from trainer.planning.shape import GraphShape
from trainer.spec.training import DEFAULT_TILE

GB = 10**9
SMALL = GraphShape(2_000, 20_000, 100, nonzeros=20_000, classes=5)
MIDDLE = GraphShape(40_000, 400_000, 200, nonzeros=400_000, classes=5)
LARGE = GraphShape(2_000_000, 20_000_000, 100, mapped=True, classes=10)


def spec(**sections):
    return parse_spec({"run": {"track": False}, **sections})


def asked(**sampling):
    return spec(sampling=sampling)


def least(given, shape):
    """Bytes without which a spec cannot be planned, to the megabyte."""
    low, high = 0, 100 * GB
    while high - low > 10**6:
        middle = (low + high) // 2
        try:
            make_plan(given, shape, middle)
            high = middle
        except OutOfMemory:
            low = middle
    return high


def test_a_small_graph_is_encoded_whole_and_contrasted_exactly():
    chosen = make_plan(spec(), SMALL, 20 * GB).spec.sampling
    assert (chosen.negatives, chosen.batch_size, chosen.num_neighbors) == ("graph", None, None)
    assert (chosen.tile, chosen.keep_mb) == (DEFAULT_TILE, 1_024)


def test_where_the_whole_graph_does_not_fit_batches_with_all_neighbours_keep_contrast_exact():
    whole = asked(negatives="graph", tile=256, keep_mb=0)
    need = estimate(make_plan(whole, MIDDLE, 100 * GB).spec, MIDDLE).total
    plan = make_plan(spec(), MIDDLE, need - 10**7)
    chosen = plan.spec.sampling
    assert chosen.negatives == "graph"
    assert chosen.batch_size is not None
    assert chosen.num_neighbors == (-1, -1)
    assert f"batches of {chosen.batch_size}" in plan.reason
    assert plan.memory.total <= need - 10**7


def test_beyond_the_size_where_exact_contrast_takes_too_long_batches_meet_each_other():
    for nodes, scope in ((EXACT_UP_TO, "graph"), (EXACT_UP_TO + 1, "batch"), (2_000_000, "batch")):
        plan = make_plan(spec(), GraphShape(nodes, 10 * nodes, 50), 200 * GB)
        assert plan.spec.sampling.negatives == scope
    assert plan.spec.sampling.num_neighbors == (10, 10)
    assert "too long" in plan.reason


def test_without_memory_for_exact_contrast_an_open_scope_becomes_batch():
    exact = least(asked(negatives="graph"), MIDDLE)
    plan = make_plan(spec(), MIDDLE, exact - 2 * 10**7)
    assert plan.spec.sampling.negatives == "batch"
    assert "no memory for exact contrast" in plan.reason


def test_kept_tiles_then_tiles_shrink_before_anything_else_does():
    seen = []
    limit = 6 * GB
    while True:
        chosen = make_plan(asked(negatives="graph"), MIDDLE, limit).spec.sampling
        if chosen.batch_size is not None:
            break
        if (chosen.tile, chosen.keep_mb) not in seen:
            seen.append((chosen.tile, chosen.keep_mb))
        limit -= 2 * 10**6
    assert seen == [(1024, 1024), (1024, 256), (1024, 0), (512, 0), (256, 0)]


def test_what_fits_shrinks_with_the_limit_and_never_exceeds_it():
    sizes = []
    for limit in (16 * GB, 3 * GB, 2 * GB, 1.4 * GB):
        plan = make_plan(spec(encoder={"hidden": 8192}), LARGE, int(limit))
        assert plan.memory.total <= limit
        sizes.append(plan.spec.sampling.batch_size)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


@pytest.mark.parametrize(
    "given, shape, part",
    [
        (spec(encoder={"hidden": 8192, "dim": 8192}), GraphShape(100, 200, 100_000, nonzeros=1_000), "optimiser"),
        (spec(), GraphShape(1_000_000, 10**9, 10), "graph"),
        (spec(), GraphShape(1_000_000, 10**6, 5_000), "features"),
        (asked(negatives="bank"), LARGE, "tables"),
        (asked(negatives="graph"), LARGE, "contrast"),
        (asked(negatives="graph", tile=32_768), MIDDLE, "tiles"),
        (asked(batch_size=500_000, num_neighbors=[-1, -1]), LARGE, "encoding"),
        (spec(), GraphShape(10_000, 10**5, 10, loading=5 * GB), "loading"),
        (spec(evaluation={"max_cluster_nodes": 2_000_000}), LARGE, "evaluation"),
    ],
)
def test_what_fits_in_no_way_is_refused_with_the_part_that_is_to_blame(given, shape, part):
    with pytest.raises(OutOfMemory, match=rf"most for {part} .*may use 3\.0 GB.*--memory-limit") as caught:
        make_plan(given, shape, 3 * GB)
    assert caught.value.exit_code == 4


def test_a_limit_below_the_libraries_says_that_nothing_else_is_to_blame():
    with pytest.raises(OutOfMemory, match="libraries alone take more"):
        make_plan(spec(), SMALL, 300 * 10**6)


@pytest.mark.parametrize(
    "sampling",
    [
        {"negatives": "graph", "batch_size": 333, "num_neighbors": [7, 3]},
        {"negatives": "bank", "batch_size": 100},
        {"negatives": "batch", "num_neighbors": [-1, 4], "tile": 77},
        {"tile": 300, "keep_mb": 5},
        {"batch_size": 64, "keep_mb": 0, "scale": "scope", "loader_workers": 1},
    ],
)
@pytest.mark.parametrize("limit", [1.2 * GB, 20 * GB])
def test_what_was_asked_for_is_never_changed(sampling, limit):
    given = asked(**sampling)
    chosen = make_plan(given, SMALL, int(limit)).spec
    assert chosen.model_dump(exclude={"sampling"}) == given.model_dump(exclude={"sampling"})
    kept = {name: value for name, value in given.sampling.model_dump().items() if value is not None}
    assert kept.items() <= chosen.sampling.model_dump().items()
    open_still = {name for name, value in chosen.sampling.model_dump().items() if value is None}
    assert open_still <= {"batch_size", "num_neighbors"}  # None means the whole graph there


def test_workers_share_the_memory_of_a_machine():
    one, four = (spec(run={"track": False, "workers": workers}) for workers in (1, 4))
    assert least(four, LARGE) > 3.5 * least(one, LARGE)
    with pytest.raises(OutOfMemory, match="each of 4 workers"):
        make_plan(four, LARGE, 2 * GB)


def test_after_memory_ran_out_kept_tiles_go_first_then_tiles_then_the_batch_until_nothing_helps():
    plan = make_plan(asked(negatives="batch", batch_size=2048, tile=2048, keep_mb=1000), LARGE, 20 * GB)
    steps = [plan]
    while (following := smaller(steps[-1], LARGE)) is not None:
        steps.append(following)
        assert len(steps) < 30
    shrunk = [step.spec.sampling for step in steps]
    assert (shrunk[1].tile, shrunk[1].keep_mb, shrunk[1].batch_size) == (1024, 0, 2048)
    assert SMALLEST_BATCH <= shrunk[-1].batch_size <= 256
    for before, after in itertools.pairwise(shrunk):
        if after.batch_size < before.batch_size:
            assert (after.tile, after.keep_mb) == (before.tile, 0)
        else:
            assert after.tile == max(SMALLEST_TILE, before.tile // 2)
    needs = [step.memory.total for step in steps]
    assert needs == sorted(needs, reverse=True)
    assert steps[1].previous == ()  # a tile changes no result: checkpoints in the middle of an epoch still serve
    assert plan.name in steps[-1].previous
    assert steps[-1].name not in steps[-1].previous
    assert "memory ran out, so tile 1024, keep_mb 0; memory ran out, so batch_size 1024" in steps[-1].reason


def test_where_weights_take_the_memory_no_smaller_batch_is_tried():
    shape = GraphShape(1_000, 2_000, 50_000, nonzeros=10_000)
    plan = make_plan(spec(encoder={"hidden": 8192}, sampling={"batch_size": 64, "keep_mb": 0}), shape, 100 * GB)
    assert smaller(plan, shape) is None


def test_after_memory_ran_out_on_the_whole_graph_it_is_encoded_by_batches():
    plan = make_plan(asked(negatives="graph", tile=64, keep_mb=0), MIDDLE, 20 * GB)
    assert plan.spec.sampling.batch_size is None
    following = smaller(plan, MIDDLE)
    assert (following.spec.sampling.batch_size, following.spec.sampling.num_neighbors) == (4096, (-1, -1))
    assert following.previous == (plan.name,)


DOCUMENT = {
    "data": {"name": "synthetic", "synthetic": {"nodes": 200, "classes": 3, "features": 20, "active_features": 5}},
    "encoder": {"hidden": 8, "dim": 8},
    "method": {"inner_steps": 1, "metric": {"hidden": 8}},
    "optimiser": {"epochs": 2},
    "evaluation": {"probe_epochs": 5, "cluster_seeds": 1, "figures": False},
    "run": {"track": False, "threads": 1},
}


def test_the_plan_of_the_first_start_holds_on_resume_whatever_memory_there_is_then(tmp_path):
    first = parse_spec(DOCUMENT)
    trainer.fit(first, tmp_path / "run", memory_limit=20 * GB)
    before = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert before["sampling"]["batch_size"] is None
    again = trainer.fit(first, tmp_path / "run", resume=True, memory_limit=10**6)
    after = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert after == before
    assert again.metrics["plan"]["sampling"] == before["sampling"]
    with pytest.raises(OutOfMemory):
        trainer.fit(first, tmp_path / "new", memory_limit=10**6)


def test_a_tile_that_ran_out_of_memory_stays_small_on_resume_unless_another_one_is_asked_for():
    given = asked(negatives="graph", tile=8192, keep_mb=500)
    shrunk = smaller(make_plan(given, MIDDLE, 20 * GB), MIDDLE)
    document = json.loads(json.dumps(shrunk.document()))
    same = restore_plan(given, document, MIDDLE)
    assert (same.spec.sampling.tile, same.spec.sampling.keep_mb) == (4096, 0)
    assert same.document() == document
    other = restore_plan(asked(negatives="graph", tile=512, keep_mb=500), document, MIDDLE)
    assert (other.spec.sampling.tile, other.spec.sampling.keep_mb) == (512, 0)
