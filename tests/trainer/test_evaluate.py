"""The whole evaluation on real vectors: JSON out, protocol named, nothing invented where labels are missing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from trainer.config import EvaluationSpec
from trainer.errors import InvalidInput, NonFinite
from trainer.evaluate import evaluate

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
