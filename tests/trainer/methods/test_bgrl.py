"""BGRL: its loss against a reference written out, and what moves the target."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.trainer.methods.small_runs import learner_of, small_spec, train_epochs
from trainer.config import parse_spec
from trainer.errors import InvalidInput
from trainer.loss.bootstrap import bootstrap_loss
from trainer.planning.plan import make_plan
from trainer.planning.shape import GraphShape
from trainer.presets import preset_spec


def first_step(learner):
    return next(learner.steps_of(1))


def test_loss_and_gradient_equal_those_written_out_node_by_node():
    draws = torch.Generator().manual_seed(0)
    q, y = (torch.randn(23, 7, dtype=torch.float64, generator=draws) for _ in range(2))
    q.requires_grad_()
    loss = bootstrap_loss(q, y)
    loss.backward()
    mine, q.grad = q.grad, None
    by_hand = 1 - sum(torch.dot(q[i], y[i]) / (q[i].norm() * y[i].norm()) for i in range(23)) / 23
    by_hand.backward()
    torch.testing.assert_close(loss.detach(), by_hand.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(mine, q.grad, rtol=0, atol=1e-12)
    assert bootstrap_loss(q, q).item() == pytest.approx(0, abs=1e-12)
    assert bootstrap_loss(q, -q).item() == pytest.approx(2, abs=1e-12)


@pytest.mark.parametrize("sampling", [{}, {"batch_size": 30}])
def test_each_prediction_meets_the_target_of_the_other_view(sampling):
    """The gradient of all that is trained, through the whole model, against modules called one by one."""
    learner = learner_of("bgrl", {"sampling": sampling} if sampling else {})
    step = first_step(learner)
    method, target = learner.spec.method, learner.parts["target"]
    with torch.no_grad():
        for parameter in target.parameters():
            parameter += 0.05  # or else target and encoder would agree
    step.embeddings = method.encode(learner, step)
    loss = method.loss(learner, step)
    step.views.backward(loss.total)
    mine = [parameter.grad.clone() for parameter in learner.trained]
    assert 0 <= loss.metrics["loss"] <= 4

    learner.zero_grad()
    (h1, h2), (y1, y2) = step.views.encode(), step.views.encode(target)
    first, second = learner.parts["predictor"].layers
    slope = learner.parts["predictor"].activation.slope

    def predicted(h):
        inner = h @ first.weight.T + first.bias
        return torch.where(inner > 0, inner, slope * inner) @ second.weight.T + second.bias

    cosine = nn.CosineSimilarity(dim=1)
    expected = 2 - cosine(predicted(h1), y2.detach()).mean() - cosine(predicted(h2), y1.detach()).mean()
    expected.backward()
    assert loss.metrics["loss"] == pytest.approx(expected.item(), rel=1e-12)
    for found, parameter in zip(mine, learner.trained, strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=0, atol=1e-10)


def test_the_target_starts_as_the_encoder_and_no_gradient_reaches_it():
    learner = learner_of("bgrl")
    target = learner.parts["target"]
    for slow, fast in zip(target.parameters(), learner.encoder.parameters(), strict=True):
        assert torch.equal(slow, fast)
    learner.step(first_step(learner))
    assert all(parameter.grad is None for parameter in target.parameters())
    trained = {id(parameter) for parameter in learner.trained}
    assert not any(id(parameter) in trained for parameter in target.parameters())


def test_the_target_averages_parameters_and_keeps_statistics_of_its_own():
    learner = learner_of("bgrl")
    target, momentum = learner.parts["target"], 0.01
    before = [parameter.clone() for parameter in target.parameters()]
    step = first_step(learner)
    views = step.views.views
    with torch.no_grad():  # the first layer's sums in both views, from the target's first weights
        sums = []
        for view in views:
            x = learner.graph.x.to_dense().double()
            sums.append(view.adjacency(0).matrix.to_dense() @ (x * view.columns) @ target.weights[0])
    learner.step(step)
    for slow, old, fast in zip(target.parameters(), before, learner.encoder.parameters(), strict=True):
        torch.testing.assert_close(slow, 0.99 * old + 0.01 * fast, rtol=0, atol=1e-12)
    norm = target.finishes[0].norm
    mean = torch.zeros(12, dtype=torch.float64)
    for rows in sums:
        mean = (1 - momentum) * mean + momentum * rows.mean(0)
    torch.testing.assert_close(norm.running_mean, mean, rtol=0, atol=1e-12)
    assert int(norm.num_batches_tracked) == 2


def test_momentum_rises_from_its_setting_to_one():
    learner = learner_of("bgrl", {"sampling": {"batch_size": 30}})
    assert learner.total_steps == 12
    method = learner.spec.method
    assert method.momentum_at(learner, 0) == pytest.approx(0.99)
    assert method.momentum_at(learner, 3) == pytest.approx(1 - 0.01 * (1 + math.cos(math.pi / 4)) / 2)
    assert method.momentum_at(learner, 12) == 1
    still = learner_of("bgrl", {"method": {"momentum": 1}})
    before = [parameter.clone() for parameter in still.parts["target"].parameters()]
    train_epochs(still, 1, 3)
    assert all(map(torch.equal, before, still.parts["target"].parameters()))


def test_in_batches_the_target_moves_by_the_same_share_of_an_epoch_as_the_learning_rate():
    for scaling, share in (("linear", 0.01 / 3), ("none", 0.01)):
        learner = learner_of("bgrl", {"sampling": {"batch_size": 30}, "optimiser": {"lr_scaling": scaling}})
        before = [parameter.clone() for parameter in learner.parts["target"].parameters()]
        learner.step(first_step(learner))
        for slow, old, fast in zip(
            learner.parts["target"].parameters(), before, learner.encoder.parameters(), strict=True
        ):
            torch.testing.assert_close(slow, old + share * (fast - old), rtol=0, atol=1e-12)


def test_the_published_configurations_are_those_of_the_table():
    photo, wikics = preset_spec("bgrl", "photo"), preset_spec("bgrl", "wikics")
    assert (photo.encoder.hidden, photo.encoder.dim, photo.optimiser.lr) == (256, 128, 1e-4)
    assert (photo.augment.edge_drop, photo.augment.feature_mask) == ((0.4, 0.1), (0.1, 0.2))
    assert (wikics.encoder.hidden, wikics.encoder.dim, wikics.data.features) == (512, 256, "zscore")
    for spec in (photo, wikics):
        assert (spec.optimiser.epochs, spec.optimiser.warmup_epochs) == (10_000, 1_000)
        assert (spec.optimiser.kind, spec.optimiser.schedule) == ("adamw", "cosine")
        assert (spec.encoder.norm, spec.encoder.batch_momentum) == ("batch", 0.01)
    assert preset_spec("bgrl", "digits").optimiser.epochs <= 200


def test_settings_that_cannot_work_are_refused():
    for over, words in (
        ({"optimiser": {"epochs": 4, "warmup_epochs": 4}}, "warmup_epochs"),
        ({"method": {"momentum": 1.5}}, "momentum"),
        ({"run": {"workers": 2}}, "encoder.norm"),
        ({"sampling": {"negatives": "bank"}}, "bgrl cannot be trained"),
    ):
        with pytest.raises(InvalidInput, match=words):
            small_spec("bgrl", over)


def test_a_team_shares_out_batches_since_there_are_no_cached_gradients():
    spec = small_spec("bgrl", {"encoder": {"norm": "layer"}, "run": {"workers": 2}})
    planned = make_plan(spec, GraphShape(1_000, 5_000, 24), 10**11).spec
    assert (planned.sampling.negatives, planned.sampling.batch_size is not None) == ("batch", True)


@pytest.mark.slow
def test_a_run_on_digits_beats_the_untrained_encoder(tmp_path):
    import trainer
    from trainer.presets import merged, preset_document

    tests = {}
    quick = {"evaluation": {"figures": False, "cluster_seeds": 1}, "run": {"track": False}}
    form = {"encoder": {**preset_document("bgrl", "digits")["encoder"], "hidden": 128, "dim": 64}}
    for name in ("untrained", "bgrl"):
        document = merged(merged(preset_document(name, "digits"), quick), form)
        tests[name] = trainer.fit(parse_spec(document), tmp_path / name).metrics["eval"]["probe"]["test"]
    assert tests["bgrl"] > tests["untrained"]
