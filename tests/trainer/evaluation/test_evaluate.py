"""The whole evaluation on real vectors: JSON out, protocol named, nothing invented where labels are missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from trainer.config import TrainSpec
from trainer.data.datasets import load
from trainer.errors import InvalidInput, NonFinite
from trainer.evaluation.evaluate import evaluate, evaluate_run
from trainer.files.atomic import sha256
from trainer.spec.data import DataSpec
from trainer.spec.evaluation import EvaluationSpec

QUICK = EvaluationSpec(probe_epochs=200, cluster_seeds=1)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return (x[:600] / 16).astype(np.float32), y[:600]


def without_time(result: dict) -> dict:
    return {key: value for key, value in result.items() if key != "seconds"}


def test_digits_are_judged_in_full_and_the_result_is_json(digits):
    z, y = digits
    result = evaluate(z, y=y, public_split=None, spec=QUICK, seed=0)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["probe"]["test"] > 0.7
    assert result["clustering"]["nmi"]["mean"] > 0.5
    assert result["pairs"]["distance_ratio"] < 80
    assert result["geometry"]["dead_dimensions"] > 0  # corner pixels are never inked
    assert result["unlabelled_reason"] is None
    protocol = result["protocol"]
    assert protocol["name"] == "clean"
    assert protocol["split"] == "random 10/10/80"
    assert protocol["split_sizes"] == {"train": 60, "val": 60, "test": 480}
    assert protocol["split_seed"] == 0
    assert protocol["pairs"]["distance"] == "1 - cos"


def test_tensor_and_array_give_the_same_and_inputs_stay_as_they_were(digits):
    z, y = digits
    tensor = torch.tensor(z, requires_grad=True)
    kept = z.copy()
    first = evaluate(z, y=y, public_split=None, spec=QUICK, seed=1)
    second = evaluate(tensor, y=torch.as_tensor(y), public_split=None, spec=QUICK, seed=1)
    assert without_time(first) == without_time(second)
    np.testing.assert_array_equal(z, kept)


def test_public_split_swap_and_split_seed_are_obeyed_and_named(digits):
    z, y = digits
    public = {"train": torch.arange(100), "val": torch.arange(100, 200), "test": torch.arange(200, 600)}
    spec = QUICK.model_copy(update={"probe_epochs": 10})
    given = evaluate(z, y=y, public_split=public, spec=spec, seed=0)
    assert given["protocol"]["split"] == "public"
    assert given["protocol"]["split_seed"] is None
    swap = spec.model_copy(update={"protocol": "pygcl_swap", "split_seed": 77})
    swapped = evaluate(z, y=y, public_split=None, spec=swap, seed=0)
    assert swapped["protocol"]["split_sizes"] == {"train": 60, "val": 480, "test": 60}
    assert swapped["protocol"]["split_seed"] == 77


@pytest.mark.parametrize("y", [None, np.full(600, -1), np.where(np.arange(600) < 5, 3, -1)])
def test_without_two_classes_there_is_geometry_and_a_reason(digits, y):
    z, _ = digits
    result = evaluate(z, y=y, public_split=None, spec=QUICK, seed=0)
    assert result["probe"] is result["clustering"] is result["pairs"] is None
    assert result["geometry"]["effective_rank"] > 1
    assert result["unlabelled_reason"]


def test_too_few_labels_cost_the_probe_but_not_the_rest(digits):
    z, y = digits
    few = np.where(np.arange(600) < 15, y, -1)
    result = evaluate(z, y=few, public_split=None, spec=QUICK, seed=0)
    assert result["probe"] is None
    assert "15 labelled nodes are too few" in result["unlabelled_reason"]
    assert result["clustering"]["nodes"] == result["pairs"]["nodes"] == 15


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_embeddings_are_refused_with_their_number(digits, value):
    z, y = digits
    broken = z.copy()
    broken[[3, 9], 2] = value
    with pytest.raises(NonFinite, match="2 of 600"):
        evaluate(broken, y=y, public_split=None, spec=QUICK, seed=0)


def test_labels_of_another_length_are_refused(digits):
    z, y = digits
    with pytest.raises(InvalidInput, match="600 embeddings"):
        evaluate(z, y=y[:-1], public_split=None, spec=QUICK, seed=0)


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_a_read_only_memory_map_is_judged_like_the_array(tmp_path, digits):
    z, y = digits
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", y)
    mapped, labels = (np.load(tmp_path / name, mmap_mode="r") for name in ("z.npy", "y.npy"))
    found = evaluate(mapped, y=labels, public_split=None, spec=QUICK, seed=1)
    assert without_time(found) == without_time(evaluate(z, y=y, public_split=None, spec=QUICK, seed=1))


def test_limits_that_are_not_reached_change_no_figure_and_the_protocol_says_all_nodes(digits):
    z, y = digits
    tight = QUICK.model_copy(update={"max_probe_nodes": 100, "max_cluster_nodes": 600, "max_pairs_nodes": 600})
    found = evaluate(z, y=y, public_split=None, spec=tight, seed=0)
    free = evaluate(z, y=y, public_split=None, spec=QUICK, seed=0)
    for name in ("probe", "clustering", "pairs", "geometry"):
        assert found[name] == free[name]
    protocol = found["protocol"]
    for name in ("probe", "clustering", "pairs"):
        assert protocol[name]["sampled"] is False
        assert protocol[name]["sample_seed"] is None


def test_the_protocol_states_every_sample_and_its_seed():
    random = np.random.default_rng(0)
    y = np.arange(5_000) % 4 - 1  # a quarter without a label
    z = (np.eye(4)[y + 1] + 0.5 * random.normal(size=(5_000, 4))).astype(np.float32)
    spec = QUICK.model_copy(update={"max_probe_nodes": 200, "max_cluster_nodes": 1_000, "max_pairs_nodes": 800})
    result = evaluate(z, y=y, public_split=None, spec=spec, seed=9)
    protocol = result["protocol"]
    assert protocol["probe"]["nodes"] == {
        "train": {"used": 200, "available": 375},
        "val": {"used": 200, "available": 375},
        "test": {"used": 3_000, "available": 3_000},
    }
    expected = {"clustering": (1_000, 3_750), "pairs": (800, 3_750)}
    for name, (used, available) in expected.items():
        assert (protocol[name]["used"], protocol[name]["available"]) == (used, available)
        assert (result[name]["nodes"], result[name]["available"]) == (used, available)
    uniformity = protocol["geometry"]["uniformity"]
    assert (uniformity["used"], uniformity["available"]) == (2_048, 5_000)
    for part in (protocol["probe"], protocol["clustering"], protocol["pairs"], uniformity):
        assert part["sampled"] is True
        assert part["sample_seed"] == 9
        assert part["max_nodes"] >= part.get("used", 200)
    again = evaluate(z, y=y, public_split=None, spec=spec, seed=9)
    assert without_time(again) == without_time(result)


def test_a_sample_of_one_class_costs_the_clustering_but_not_the_rest():
    z = np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float32)
    y = np.zeros(20_000, dtype=np.int64)
    y[0] = 1
    spec = QUICK.model_copy(update={"max_cluster_nodes": 100, "max_pairs_nodes": 300, "probe_epochs": 4})
    result = evaluate(z, y=y, public_split=None, spec=spec, seed=0)
    assert result["clustering"] is None
    assert "max_cluster_nodes" in result["unlabelled_reason"]
    assert result["pairs"]["nodes"] == 300


@pytest.mark.parametrize("z", [np.zeros(5), np.zeros((0, 3)), np.zeros((3, 0)), torch.zeros(2, 2, 2)])
def test_what_is_no_table_is_refused(z):
    with pytest.raises(InvalidInput, match="nodes × dimensions"):
        evaluate(z, y=None, public_split=None, spec=QUICK, seed=0)


@pytest.fixture
def finished_run(tmp_path) -> Path:
    """A run directory with exported embeddings, written by hand: the features of the digits stand for vectors."""
    spec = TrainSpec(data=DataSpec(name="digits"), evaluation=QUICK)
    graph = load(spec.data)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    embeddings = tmp_path / "embeddings"
    embeddings.mkdir()
    np.save(embeddings / "vectors.npy", graph.x.to_dense().numpy())
    np.save(embeddings / "ids.npy", graph.ids)
    vouch(embeddings)
    return tmp_path


def vouch(embeddings: Path) -> None:
    files = {name: sha256(embeddings / name) for name in ("vectors.npy", "ids.npy")}
    (embeddings / "manifest.json").write_text(json.dumps({"id_type": "int", "files": files}))


def test_an_exported_run_is_judged_like_its_vectors(finished_run):
    graph = load(DataSpec(name="digits"))
    expected = evaluate(graph.x.to_dense(), y=graph.y, public_split=graph.split, spec=QUICK, seed=0)
    assert without_time(evaluate_run(finished_run)) == without_time(expected)
    assert evaluate_run(finished_run, protocol="pygcl_swap")["protocol"]["split"] == "random 10/80/10"


@pytest.mark.parametrize("change", ["swap", "cut"])
def test_embeddings_of_other_nodes_are_refused(finished_run, monkeypatch, change):
    monkeypatch.setattr("trainer.evaluation.evaluate._IDS", 100)  # several pieces
    embeddings = finished_run / "embeddings"
    ids = np.load(embeddings / "ids.npy")
    if change == "swap":
        ids[[-1, -2]] = ids[[-2, -1]]
    np.save(embeddings / "ids.npy", ids if change == "swap" else ids[:-1])
    vouch(embeddings)
    with pytest.raises(InvalidInput, match="no longer has the nodes"):
        evaluate_run(finished_run)
