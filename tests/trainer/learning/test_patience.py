"""Early stopping: when a run ends, whose weights are exported, and that a resumed run ends at the same epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trainer
from trainer.callbacks import Callback
from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.learning.learner import Learner
from trainer.learning.patience import Patience
from trainer.nn.encoder import Encoder
from trainer.run.checkpoint import Progress, load_newest, save_checkpoint
from trainer.run.directory import read_events
from trainer.spec.data import DataSpec, SyntheticSpec
from trainer.spec.encoder import EncoderSpec

SYNTHETIC = {"nodes": 120, "classes": 3, "features": 12, "active_features": 3}


def document(**optimiser) -> dict:
    return {
        "data": {"name": "synthetic", "synthetic": SYNTHETIC}, "encoder": {"hidden": 8, "dim": 8},
        "method": {"inner_steps": 1, "metric": {"hidden": 8}}, "optimiser": {"epochs": 40, **optimiser},
        "evaluation": {"probe_epochs": 5, "cluster_seeds": 1, "figures": False},
        "run": {"track": False, "threads": 1, "checkpoint_every": 3},
    }  # fmt: skip


def graph():
    return load(DataSpec(name="synthetic", synthetic=SyntheticSpec(**SYNTHETIC)))


def encoder() -> Encoder:
    return Encoder(4, EncoderSpec(hidden=3, dim=2), generator=torch.Generator().manual_seed(0))


def fill(encoder: Encoder, value: float) -> None:
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.fill_(value)


def values(encoder: Encoder) -> set[float]:
    return {float(value) for parameter in encoder.parameters() for value in parameter.detach().flatten()}


def test_it_runs_out_after_so_many_epochs_without_a_lower_loss_and_has_kept_the_best():
    model = encoder()
    patience = Patience(model, 3)
    seen = []
    for epoch, loss in enumerate([5.0, 4.0, 4.5, 3.0, 3.5, 3.0, 3.1]):
        fill(model, epoch)
        patience.take_note(model, loss)
        seen.append(patience.has_run_out)
    assert seen == [False] * 6 + [True]  # an equal loss is not a lower one
    patience.restore(model)
    assert values(model) == {3.0}


def test_what_was_kept_does_not_move_with_the_encoder():
    model = encoder()
    patience = Patience(model, 1)
    fill(model, 1)
    patience.take_note(model, 1.0)
    fill(model, 2)
    patience.restore(model)
    assert values(model) == {1.0}


@pytest.mark.parametrize("loss", [0.1, 0.7, 1 / 3])
def test_a_loss_that_stays_the_same_ends_the_run_in_float32_as_well(loss):
    learner = Learner(parse_spec(document(patience=2)), graph())
    for _ in range(3):
        assert not learner.is_done
        learner.take_note({"loss": loss})
    assert learner.is_done


def test_without_patience_no_run_is_done_and_the_last_encoder_is_exported():
    learner = Learner(parse_spec(document()), graph())
    for _ in range(50):
        learner.take_note({"loss": 1.0})
    assert not learner.is_done
    assert learner.finished_encoder() is learner.encoder
    assert not [name for name in learner.state_dict() if name.startswith("patience")]


def test_a_checkpoint_holds_the_best_loss_the_best_weights_and_the_count(tmp_path):
    spec = parse_spec(document(patience=3))
    learner, resumed = Learner(spec, graph()), Learner(spec, graph())
    fill(learner.encoder, 1)
    learner.take_note({"loss": 0.1})
    fill(learner.encoder, 2)
    learner.take_note({"loss": 0.2})
    save_checkpoint(tmp_path, learner, Progress(2), spec_hash="a", keep=1)
    load_newest(tmp_path, resumed, spec_hash="a")
    assert values(resumed.encoder) == {2.0}
    resumed.take_note({"loss": 0.1})
    assert not resumed.is_done
    resumed.take_note({"loss": 0.1})
    assert resumed.is_done
    assert values(resumed.finished_encoder()) == {1.0}


class CutOff(Callback):
    """Ends a run after an epoch as a failure would, without a checkpoint of its own."""

    def __init__(self, epoch: int):
        self.epoch = epoch

    def on_epoch(self, event):
        if event["epoch"] == self.epoch:
            raise RuntimeError("cut off")


def losses(directory) -> dict[int, float]:
    events = read_events(directory)
    return {event["epoch"]: event["metrics"]["loss"] for event in events if event["type"] == "epoch"}


def test_a_run_that_stopped_early_exports_its_best_epoch_also_if_cut_off_and_resumed(tmp_path):
    spec = parse_spec(document(patience=4, lr=0.3, epochs=200))  # a rate at which the loss soon stops falling
    whole = trainer.fit(spec, tmp_path / "whole")
    curve = losses(tmp_path / "whole")
    best = min(curve, key=curve.__getitem__)
    assert whole.stopped_early
    assert whole.epochs == best + 4 < 200

    # what is exported is the encoder after the best epoch: that of a run which ends there
    shorter = parse_spec(document(lr=0.3, epochs=best))
    exported = np.load(whole.embeddings)
    np.testing.assert_array_equal(exported, np.load(trainer.fit(shorter, tmp_path / "shorter").embeddings))

    with pytest.raises(RuntimeError, match="cut off"):
        trainer.fit(spec, tmp_path / "cut", callbacks=[CutOff(best + 1)])
    resumed = trainer.fit(spec, tmp_path / "cut", resume=True)
    assert losses(tmp_path / "cut") == curve
    assert resumed.embeddings.read_bytes() == whole.embeddings.read_bytes()

    again = trainer.fit(spec, tmp_path / "whole", resume=True)
    assert again.epochs == whole.epochs
    assert again.embeddings.read_bytes() == exported_bytes(tmp_path / "cut")


def exported_bytes(directory) -> bytes:
    return (directory / "embeddings" / "vectors.npy").read_bytes()
