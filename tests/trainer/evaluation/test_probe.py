"""The probe against separate Adam runs and scikit-learn, and proof that test labels choose nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from trainer.evaluation.probe import PATIENCE, WEIGHT_DECAYS, choose_head, linear_probe, settings_of
from trainer.evaluation.rows import Rows
from trainer.evaluation.splits import Split, choose_split
from trainer.spec.evaluation import EvaluationSpec


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor, Split]:
    x, labels = load_digits(return_X_y=True)
    y = torch.as_tensor(labels)
    return torch.as_tensor(x / 16.0, dtype=torch.float32), y, choose_split(y, None, "clean", seed=0)


def blobs(n: int, d: int, classes: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(0)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=noise, dtype=torch.float64)
    return centres[y] + spread * torch.randn(n, d, generator=noise, dtype=torch.float64), y


def separate_heads(z, y, split, epochs, lr, start):
    """Slow reference: one nn.Linear and one torch.optim.Adam per weight decay; the rules of methods 5.3 literally."""
    candidates = []
    for weight_decay in WEIGHT_DECAYS:
        head = torch.nn.Linear(z.shape[1], start.shape[1], dtype=z.dtype)
        with torch.no_grad():
            head.weight.copy_(start[:-1].T)
            head.bias.copy_(start[-1])
        adam = torch.optim.Adam(head.parameters(), lr=lr, weight_decay=weight_decay)
        for epoch in range(1, epochs + 1):
            adam.zero_grad()
            torch.nn.functional.cross_entropy(head(z[split.train]), y[split.train]).backward()
            adam.step()
            if epoch % 2 == 0 or epoch == epochs:
                val = (head(z[split.val]).argmax(1) == y[split.val]).sum().item()
                weight = torch.cat([head.weight.T, head.bias[None]]).detach().clone()
                candidates.append((-val, epoch, weight_decay, weight))
    return min(candidates, key=lambda item: item[:3])


@pytest.mark.parametrize("d, classes, spread, epochs", [(12, 3, 3.0, 61), (40, 5, 4.0, 40), (5, 2, 1.5, 30)])
def test_heads_trained_together_equal_heads_trained_alone(d, classes, spread, epochs):
    z, y = blobs(400, d, classes, spread)
    split = choose_split(y, None, "clean", seed=1)
    start = linear_probe(z, y, split, epochs=1, lr=1e-300, seed=7).weight  # a step of length zero shows the start
    found = linear_probe(z, y, split, epochs=epochs, lr=0.05, seed=7)
    minus_val, epoch, weight_decay, weight = separate_heads(z, y, split, epochs, 0.05, start)
    assert found.epoch == epoch
    assert found.weight_decay == weight_decay
    assert found.val == pytest.approx(-minus_val / len(split.val))
    torch.testing.assert_close(found.weight, weight, rtol=1e-6, atol=1e-9)


def test_the_grid_is_not_decoration():
    """On few noisy samples in many dimensions a decaying head must be able to win."""
    chosen = set()
    for seed in range(6):
        z, y = blobs(300, 200, 4, 6.0)
        chosen.add(linear_probe(z, y, choose_split(y, None, "clean", seed), epochs=200, seed=seed).weight_decay)
    assert max(chosen) > 0


def test_test_labels_influence_neither_choice_nor_weights(digits):
    z, y, split = digits
    found = linear_probe(z, y, split, epochs=150, seed=0)
    shuffled = y.clone()
    shuffled[split.test] = y[split.test][torch.randperm(len(split.test), generator=torch.Generator().manual_seed(0))]
    unseen = y.clone()
    unseen[split.test] = 99  # not even a new class may be noticed
    for other_y in (shuffled, unseen):
        other = linear_probe(z, other_y, split, epochs=150, seed=0)
        assert (other.weight_decay, other.epoch, other.val) == (found.weight_decay, found.epoch, found.val)
        assert torch.equal(other.weight, found.weight)
        assert other.test < 0.3 < found.test


def test_choosing_a_head_needs_no_test_nodes_and_is_what_the_probe_does(digits):
    z, y, split = digits
    found = linear_probe(z, y, split, epochs=150, seed=3, max_nodes=150)
    known = torch.cat([split.train, split.val])
    only_z, only_y = torch.full_like(z, float("nan")), torch.full_like(y, -1)
    only_z[known], only_y[known] = z[known], y[known]
    head = choose_head(only_z, only_y, split.train, split.val, epochs=150, seed=3, max_nodes=150)
    assert torch.equal(head.weight, found.weight)
    assert torch.equal(head.classes, found.classes)
    for name in ("weight_decay", "epoch", "epochs_run", "train", "val"):
        assert getattr(head, name) == getattr(found, name)
    assert found.used == {**head.used, "test": len(split.test)}


def test_settings_are_those_of_the_spec(digits):
    z, y, split = digits
    spec = EvaluationSpec(probe_epochs=30, probe_lr=0.1, l2_normalise=True, max_probe_nodes=120)
    asked = linear_probe(z, y, split, **settings_of(spec, seed=5))
    named = linear_probe(z, y, split, epochs=30, lr=0.1, l2_normalise=True, seed=5, max_nodes=120)
    assert asked.as_dict() == named.as_dict()
    assert torch.equal(asked.weight, named.weight)


def test_accuracy_is_that_of_a_converged_logistic_regression(digits):
    z, y, split = digits
    found = linear_probe(z, y, split)
    reference = LogisticRegression(C=10, max_iter=2_000).fit(z[split.train].numpy(), y[split.train].numpy())
    expected = reference.score(z[split.test].numpy(), y[split.test].numpy())
    assert expected > 0.85
    assert found.test == pytest.approx(expected, abs=0.02)


def test_reported_accuracies_are_those_of_the_returned_weights(digits):
    z, y, split = digits
    found = linear_probe(z, y, split, epochs=60)
    logits = z @ found.weight[:-1] + found.weight[-1]
    right = found.classes[logits.argmax(1)] == y
    for name in ("train", "val", "test"):
        assert getattr(found, name) == pytest.approx(right[getattr(split, name)].double().mean().item())


def test_same_seed_same_result_whatever_the_global_generator(digits):
    z, y, split = digits
    torch.manual_seed(1)
    first = linear_probe(z, y, split, epochs=40, seed=3)
    torch.manual_seed(2)
    again = linear_probe(z, y, split, epochs=40, seed=3)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, linear_probe(z, y, split, epochs=40, seed=4).weight)


def test_patience_stops_a_probe_that_cannot_learn_and_keeps_its_best_head():
    z = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(100) % 2
    split = choose_split(y, None, "clean", seed=0)
    found = linear_probe(z, y, split, epochs=100_000, seed=0)
    assert found.epochs_run == found.epoch + PATIENCE
    longer = linear_probe(z, y, split, epochs=found.epochs_run, patience=10**9, seed=0)
    assert torch.equal(found.weight, longer.weight)


def test_perfect_validation_stops_at_once_with_the_smallest_decay():
    z, y = blobs(200, 8, 3, 0.01)
    found = linear_probe(z, y, choose_split(y, None, "clean", seed=0))
    assert found.val == 1
    assert found.epochs_run == found.epoch
    assert found.weight_decay == 0


def test_unit_rows_make_the_probe_blind_to_scale(digits):
    z, y, split = digits
    scaled = z * torch.rand(len(z), 1, generator=torch.Generator().manual_seed(0)).add(0.5)
    plain = linear_probe(z, y, split, epochs=60, l2_normalise=True)
    other = linear_probe(scaled, y, split, epochs=60, l2_normalise=True)
    assert other.test == pytest.approx(plain.test, abs=0.005)
    assert linear_probe(scaled, y, split, epochs=60).test != pytest.approx(plain.test, abs=1e-6)


def test_class_missing_from_training_counts_as_wrong():
    z, y = blobs(300, 6, 3, 0.01)
    train = torch.nonzero(y < 2).flatten()[:60]
    rest = torch.tensor([node for node in range(300) if node not in set(train.tolist())])
    found = linear_probe(z, y, Split(train, rest[:60], rest[60:], "by hand"), epochs=50)
    assert found.classes.tolist() == [0, 1]
    assert found.test == pytest.approx((y[rest[60:]] < 2).double().mean().item())


def test_figures_are_plain_json(digits):
    z, y, split = digits
    figures = linear_probe(z, y, split, epochs=4).as_dict()
    assert {type(value) for value in figures.values()} <= {int, float, bool, str, dict}
    assert figures["sizes"] == {"train": 179, "val": 179, "test": 1439}


def test_result_is_frozen(digits):
    z, y, split = digits
    with pytest.raises(dataclasses.FrozenInstanceError):
        linear_probe(z, y, split, epochs=2).test = 1.0


def test_a_limit_that_is_not_reached_changes_nothing(digits):
    z, y, split = digits
    found = linear_probe(z, y, split, epochs=40, max_nodes=len(split.train))
    free = linear_probe(z, y, split, epochs=40, max_nodes=10**9)
    assert torch.equal(found.weight, free.weight)
    assert found.as_dict() == free.as_dict()
    assert not found.sampled
    assert found.used == found.sizes


def test_above_the_limit_a_seeded_sample_is_close_to_all_nodes():
    z, y = blobs(20_000, 16, 4, 2.0)
    split = choose_split(y, None, "clean", seed=0)
    whole = linear_probe(z, y, split, epochs=100, seed=1)
    part = linear_probe(z, y, split, epochs=100, seed=1, max_nodes=1_000)
    assert part.sampled
    assert part.sizes == {"train": 2_000, "val": 2_000, "test": 16_000}
    assert part.used == {"train": 1_000, "val": 1_000, "test": 16_000}
    assert 0.5 < whole.test < 0.99  # else closeness would be no news
    assert part.test == pytest.approx(whole.test, abs=0.02)
    assert torch.equal(part.weight, linear_probe(z, y, split, epochs=100, seed=1, max_nodes=1_000).weight)
    assert part.val != linear_probe(z, y, split, epochs=100, seed=2, max_nodes=1_000).val


def test_a_sampled_probe_is_the_probe_of_some_training_nodes_and_never_of_test_nodes():
    """Test rows and labels are replaced by nonsense: nothing but the test accuracy may notice."""
    z, y = blobs(6_000, 8, 3, 2.0)
    split = choose_split(y, None, "clean", seed=0)
    found = linear_probe(z, y, split, epochs=60, seed=0, max_nodes=200)
    other_z, other_y = z.clone(), y.clone()
    other_z[split.test] = 1e6
    other_y[split.test] = 99
    other = linear_probe(other_z, other_y, split, epochs=60, seed=0, max_nodes=200)
    assert torch.equal(other.weight, found.weight)
    assert (other.weight_decay, other.epoch, other.val, other.train) == (
        found.weight_decay, found.epoch, found.val, found.train,
    )  # fmt: skip
    assert other.test == 0


def test_test_accuracy_by_pieces_is_over_every_test_node(digits):
    z, y, split = digits
    whole = linear_probe(z, y, split, epochs=30)
    pieces = linear_probe(Rows(z, torch.float32, 97), y, split, epochs=30)
    assert pieces.as_dict() == whole.as_dict()
