"""A run that the kernel ended for lack of memory goes on smaller, once for each time, however often it is started."""

from __future__ import annotations

import json

from trainer.__main__ import main
from trainer.config import parse_spec
from trainer.planning.plan import make_plan, restore_plan, shrink, smaller
from trainer.planning.shape import GraphShape

SPEC = parse_spec({"run": {"track": False}})
MIDDLE = GraphShape(40_000, 400_000, 200, nonzeros=400_000, classes=5)


def plan():
    return make_plan(SPEC, MIDDLE, 40 * 10**9)


def test_so_many_times_means_so_many_steps():
    first = plan()
    one = smaller(first, MIDDLE)
    two = smaller(one, MIDDLE)
    assert shrink(first, MIDDLE, 0) == first
    assert shrink(first, MIDDLE, 1).spec == one.spec
    assert shrink(first, MIDDLE, 2).spec == two.spec
    assert shrink(first, MIDDLE, 2).previous == two.previous


def test_starting_again_with_the_same_count_changes_nothing():
    once = shrink(plan(), MIDDLE, 1)
    again = restore_plan(SPEC, json.loads(json.dumps(once.document())), MIDDLE)
    assert again.shrunk == 1
    assert shrink(again, MIDDLE, 1) == again
    assert shrink(again, MIDDLE, 2).spec == smaller(again, MIDDLE).spec


def test_steps_that_the_run_took_itself_are_not_taken_for_those_asked_from_outside():
    """It became smaller by itself, and was killed all the same: so it must become smaller still."""
    itself = smaller(plan(), MIDDLE)
    assert itself.shrunk == 0
    assert shrink(itself, MIDDLE, 1).spec == smaller(itself, MIDDLE).spec


def test_a_plan_that_cannot_shrink_stays_and_counts():
    smallest = shrink(plan(), MIDDLE, 90)
    assert smallest.shrunk == 90
    assert smaller(smallest, MIDDLE) is None


def test_a_plan_of_an_earlier_version_has_not_been_shrunk():
    document = plan().document()
    del document["shrunk"]
    assert restore_plan(SPEC, document, MIDDLE).shrunk == 0


def test_the_command_line_shrinks_keeps_count_and_goes_on_from_the_checkpoint(tmp_path):
    document = {
        "data": {"name": "synthetic", "synthetic": {"nodes": 300, "features": 16, "active_features": 3}},
        "encoder": {"hidden": 8, "dim": 8}, "method": {"inner_steps": 1, "metric": {"hidden": 8}},
        "optimiser": {"epochs": 2}, "run": {"track": False, "export": False},
    }  # fmt: skip
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    spec.write_text(json.dumps(document))
    tiles = []
    for shrunk in ("0", "1", "1", "2"):
        assert main([str(spec), "--out", str(out), "--resume", "--shrunk", shrunk]) == 0
        stored = json.loads((out / "plan.json").read_text())
        assert stored["shrunk"] == int(shrunk)
        tiles.append((stored["sampling"]["tile"], stored["sampling"]["batch_size"]))
    assert tiles[1] == tiles[2]
