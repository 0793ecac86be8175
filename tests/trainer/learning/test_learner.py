"""What the loop steps: hooks in their order, one optimiser for what is trained, and a state that resumes to the bit."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.methods.epochs import train_epoch
from trainer.config import TrainSpec, parse_spec
from trainer.data.datasets import load
from trainer.errors import NonFinite
from trainer.files.documents import apply_overrides
from trainer.learning.learner import Learner
from trainer.methods.interface import Loss, Method
from trainer.run.checkpoint import Progress, load_newest, save_checkpoint
from trainer.spec.data import DataSpec, SyntheticSpec

GRAPH = DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=120, classes=3, features=20, active_features=5))
BATCHES = ("sampling.negatives=batch", "sampling.batch_size=50", "sampling.num_neighbors=[4, 4]")
BANK = ("sampling.negatives=bank", *BATCHES[1:])


@pytest.fixture(scope="module")
def graph():
    return load(GRAPH)


def spec_of(*overrides: str) -> TrainSpec:
    document = {
        "data": {"name": "synthetic"}, "encoder": {"hidden": 8, "dim": 8},
        "method": {"inner_steps": 2, "metric": {"hidden": 8}}, "optimiser": {"epochs": 6, "lr": 0.01},
    }  # fmt: skip
    return parse_spec(apply_overrides(document, list(overrides)))


class Recorded(Method):
    """A method that writes down when it is asked what; its loss is the squared norm of an extra module's output."""

    name: str = "recorded"
    calls: list[str]
    factor: float = 1.0

    def build(self, learner):
        learner.parts["head"] = torch.nn.Linear(8, 3)

    def before_epoch(self, learner, epoch):
        self.calls.append(f"before {epoch}")

    def encode(self, learner, step):
        self.calls.append(f"encode {step.epoch}.{step.number}")
        return step.views.encode()

    def inner(self, learner, step):
        self.calls.append("inner")

    def loss(self, learner, step):
        self.calls.append("loss")
        total = self.factor * learner.parts["head"](step.embeddings[0]).square().mean()
        return Loss(total, {"loss": float(total.detach())})

    def after_step(self, learner, step):
        self.calls.append("after")


def recorded(graph, *overrides, factor=1.0):
    return Learner(spec_of(*overrides).model_copy(update={"method": Recorded(calls=[], factor=factor)}), graph)


def state(learner):
    return {name: value.clone() for name, value in learner.state_dict().items()}


def test_hooks_are_called_in_order_and_steps_are_numbered_through_the_run(graph):
    learner = recorded(graph, *BATCHES)
    train_epoch(learner, 2)
    one = ["inner", "loss", "after"]
    assert learner.steps == 3
    assert learner.total_steps == 18
    assert learner.spec.method.calls == ["before 2", "encode 2.3", *one, "encode 2.4", *one, "encode 2.5", *one]


def test_an_epoch_gone_on_with_is_not_begun_again_and_counts_its_steps_from_there(graph):
    learner = recorded(graph, *BATCHES)
    assert [(step.epoch, step.number) for step in learner.steps_of(2, start=1)] == [(2, 4), (2, 5)]
    assert learner.spec.method.calls == ["encode 2.4", "encode 2.5"]


def test_whatever_the_method_builds_and_does_not_freeze_is_trained_with_the_encoder(graph):
    learner = recorded(graph)
    assert "parts.head.weight" in learner.state_dict()
    before = state(learner)
    train_epoch(learner, 1)
    still = {name for name, value in learner.state_dict().items() if torch.equal(value, before[name])}
    assert not still & {"parts.head.weight", "parts.head.bias", "encoder.weights.0", "encoder.weights.1"}


def test_modules_of_the_method_have_the_precision_of_the_run(graph):
    learner = recorded(graph, "run.dtype=float64")
    assert {value.dtype for value in learner.parameters()} == {torch.float64}


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_steps_nothing(graph, factor):
    learner = recorded(graph)
    learner.spec = learner.spec.model_copy(update={"method": Recorded.model_construct(calls=[], factor=factor)})
    before = state(learner)
    (step,) = learner.steps_of(1)
    with pytest.raises(NonFinite, match=r"optimiser\.lr"):
        learner.step(step)
    assert all(torch.equal(value, before[name]) for name, value in learner.state_dict().items())


def test_each_of_k_steps_takes_a_kth_of_the_rate_unless_told_otherwise(graph):
    def rates(scaling):
        learner = Learner(spec_of(*BATCHES, f"optimiser.lr_scaling={scaling}"), graph)
        train_epoch(learner, 1)
        return {name: optimiser.param_groups[0]["lr"] for name, optimiser in learner.optimisers.items()}

    assert rates("linear") == pytest.approx({"encoder": 0.01 / 3, "metric": 0.01 / 3})
    assert rates("none") == {"encoder": 0.01, "metric": 0.01}


def test_a_reference_has_nothing_to_train_and_leaves_the_encoder_as_it_was_drawn(graph):
    learner = Learner(spec_of("method=untrained", "optimiser.epochs=1").model_copy(), graph)
    drawn = Learner(spec_of(), graph).encoder.state_dict()
    assert train_epoch(learner, 1) == {"loss": 0.0}
    assert learner.optimisers == {}
    for name, value in learner.finished_encoder().state_dict().items():
        assert torch.equal(value, drawn[name])


@pytest.mark.parametrize("scope", [(), BATCHES, BANK])
def test_a_resumed_run_goes_on_to_the_bit(graph, tmp_path, scope):
    spec = spec_of(*scope, "optimiser.schedule=cosine", "optimiser.warmup_epochs=2", "optimiser.kind=adamw",
                   "optimiser.weight_decay=0.1", "encoder.activation=rrelu_random")  # fmt: skip
    whole = Learner(spec, graph)
    for epoch in range(1, 4):
        train_epoch(whole, epoch)
    save_checkpoint(tmp_path, whole, Progress(3), spec_hash="a", keep=1)
    resumed = Learner(spec, graph)
    assert load_newest(tmp_path, resumed, spec_hash="a") == Progress(3)
    for epoch in range(4, 7):
        assert train_epoch(resumed, epoch) == train_epoch(whole, epoch)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize("scope", [BATCHES, BANK])
def test_a_run_resumed_within_an_epoch_goes_on_to_the_bit(graph, tmp_path, scope):
    spec = spec_of(*scope, "optimiser.schedule=cosine")
    whole, resumed = Learner(spec, graph), Learner(spec, graph)
    figures = []
    for index, step in enumerate(whole.steps_of(1)):
        figures.append(whole.step(step))
        if index == 0:
            save_checkpoint(tmp_path, whole, Progress(0, 1), spec_hash="a", keep=1)
    assert load_newest(tmp_path, resumed, spec_hash="a").steps == 1
    assert [resumed.step(step) for step in resumed.steps_of(1, start=1)] == figures[1:]
