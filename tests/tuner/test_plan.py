"""How many trials fit side by side, and what is decided once for all of them."""

from __future__ import annotations

import pytest

from tests.tuner.sweeps import SPACE, small_sweep
from trainer.data.sources.synthetic import generate
from trainer.errors import Infrastructure, InvalidInput, OutOfMemory
from trainer.planning.shape import shape_of
from trainer.spec.data import SyntheticSpec
from tuner import plan
from tuner.plan import arrange

GB = 2**30
HAS = {"CPU": 8.0, "memory": 16.0 * GB}


@pytest.fixture(scope="module")
def shape():
    return shape_of(generate(SyntheticSpec(nodes=200, classes=3, features=24, degree=6)))


def on_a_machine_with(monkeypatch, memory):
    monkeypatch.setattr(plan, "usable_memory", lambda: int(memory))


def test_as_many_trials_run_as_there_are_cpus_and_memory_lowers_that(monkeypatch, shape):
    spec = small_sweep(concurrency=None)
    on_a_machine_with(monkeypatch, 64 * GB)
    assert arrange(spec, shape, "local", HAS, None)[:2] == (8, 8 * GB)
    on_a_machine_with(monkeypatch, 3 * GB)
    few = arrange(spec, shape, "local", HAS, None)
    assert 1 <= few.concurrency < 8
    assert few.memory == 3 * GB // few.concurrency


def test_what_does_not_fit_is_refused_before_the_first_trial_with_what_to_change(monkeypatch, shape):
    on_a_machine_with(monkeypatch, GB // 8)
    with pytest.raises(OutOfMemory, match=r"1 trials at a time .* raise resources.memory_gb"):
        arrange(small_sweep(concurrency=None), shape, "local", HAS, None)
    on_a_machine_with(monkeypatch, GB)
    with pytest.raises(OutOfMemory, match=r"6 trials at a time .* lower concurrency"):
        arrange(small_sweep(concurrency=6), shape, "local", HAS, None)


@pytest.mark.parametrize("wants", [{"cpus": 9}, {"gpus": 1}, {"memory_gb": 17}])
def test_more_than_there_is_for_one_trial_is_refused_with_both_numbers(monkeypatch, shape, wants):
    on_a_machine_with(monkeypatch, 64 * GB)
    spec = small_sweep(concurrency=None, resources=wants)
    with pytest.raises(InvalidInput, match=r"this machine has 8, 0 and 16\.0\. Lower resources"):
        arrange(spec, shape, "local", HAS, None)
    with pytest.raises(Infrastructure, match="the Ray cluster at there:6379 has"):
        arrange(spec, shape, "there:6379", HAS, None)


def test_all_trials_sample_alike_as_decided_at_first_whatever_memory_there_is_later(monkeypatch, shape):
    on_a_machine_with(monkeypatch, 64 * GB)
    spec = small_sweep(concurrency=2)
    first = arrange(spec, shape, "local", HAS, None)
    assert first.sampling == {
        "sampling.negatives": "graph", "sampling.batch_size": None, "sampling.num_neighbors": None,
    }  # fmt: skip
    decided = {"sampling.negatives": "batch", "sampling.batch_size": 64, "sampling.num_neighbors": [5, 5]}
    assert arrange(spec, shape, "local", HAS, decided).sampling == decided


def test_what_the_base_says_or_the_search_varies_is_not_decided(monkeypatch, shape):
    on_a_machine_with(monkeypatch, 64 * GB)
    said = small_sweep({"sampling": {"negatives": "batch", "batch_size": 50}})
    assert set(arrange(said, shape, "local", HAS, None).sampling) == {"sampling.num_neighbors"}
    scopes = {"kind": "choice", "values": ["graph", "batch"]}
    searched = small_sweep(space={**SPACE, "sampling.negatives": scopes})
    assert "sampling.negatives" not in arrange(searched, shape, "local", HAS, None).sampling
