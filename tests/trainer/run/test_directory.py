"""A run directory belongs to one spec and one process, and survives being cut off."""

from __future__ import annotations

import json

import pytest
import torch

from tests.trainer.methods.epochs import train_epoch
from trainer.config import TrainSpec, parse_spec, spec_hash
from trainer.data.graph import Graph
from trainer.errors import Infrastructure, InvalidInput
from trainer.files.journal import read_journal
from trainer.learning.learner import Learner
from trainer.run.checkpoint import Progress, checkpoints, load_newest, save_checkpoint
from trainer.run.directory import RunDirectory, read_events

SPEC = TrainSpec()


def small_graph() -> Graph:
    edge_index = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    return Graph.from_edges(edge_index, x, name="ring")


def small_learner(seed=0):
    spec = parse_spec({"encoder": {"hidden": 8, "dim": 8}, "method": {"metric": {"hidden": 8}}, "run": {"seed": seed}})
    return Learner(spec, small_graph())


def test_a_second_process_is_kept_out_while_the_first_trains(tmp_path):
    first = RunDirectory.open(tmp_path / "run", SPEC, resume=False)
    with pytest.raises(Infrastructure, match="another process"):
        RunDirectory.open(tmp_path / "run", SPEC, resume=True)
    first.close()
    RunDirectory.open(tmp_path / "run", SPEC, resume=True).close()


def test_an_existing_run_is_not_overwritten_without_being_asked(tmp_path):
    RunDirectory.open(tmp_path, SPEC, resume=False).close()
    with pytest.raises(InvalidInput, match="--resume"):
        RunDirectory.open(tmp_path, SPEC, resume=False)
    with pytest.raises(InvalidInput, match="another spec"):
        RunDirectory.open(tmp_path, parse_spec({"run": {"seed": 9}}), resume=True)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        RunDirectory.open(tmp_path, SPEC, resume=True)
    assert not (tmp_path / "spec.json").exists()


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Infrastructure, match="--out"):
        RunDirectory.open(tmp_path / "file" / "run", SPEC, resume=False)


def test_rewinding_takes_back_later_epochs_and_only_appends(tmp_path):
    run = RunDirectory.open(tmp_path, SPEC, resume=False)
    for epoch in range(1, 6):
        run.record("epoch", epoch=epoch, metrics={})
    with run.events.open("a") as file:
        file.write('{"type": "epoch", "epo')
    assert len(read_events(tmp_path)) == 5
    run.rewind(3)
    assert [event["epoch"] for event in run.history()] == [1, 2, 3]
    run.record("epoch", epoch=4, metrics={})
    assert [event["epoch"] for event in run.history()] == [1, 2, 3, 4]
    written = [(event["type"], event["epoch"]) for event in read_journal(run.events)]
    assert written == [*(("epoch", epoch) for epoch in range(1, 6)), ("rewind", 3), ("epoch", 4)]


def test_a_rewind_is_recorded_only_where_there_is_something_to_take_back(tmp_path):
    run = RunDirectory.open(tmp_path, SPEC, resume=False)
    run.rewind(0)
    run.record("epoch", epoch=1, metrics={})
    run.record("epoch", epoch=2, metrics={})
    for _ in range(3):
        run.rewind(2)
        run.rewind(1)
    assert [event["type"] for event in read_journal(run.events)] == ["epoch", "epoch", "rewind"]


def test_checkpoint_restores_weights_and_moments_to_the_bit(tmp_path):
    learner, other = small_learner(), small_learner(seed=1)
    train_epoch(learner, 1)
    save_checkpoint(tmp_path, learner, Progress(1), spec_hash="a", keep=2)
    other.encoding.spec = learner.spec  # the seed of its views
    assert load_newest(tmp_path, other, spec_hash="a") == Progress(1)
    assert [train_epoch(learner, epoch) for epoch in (2, 3)] == [train_epoch(other, epoch) for epoch in (2, 3)]


def test_a_checkpoint_within_an_epoch_is_newer_than_the_one_before_it_and_keeps_the_sums(tmp_path):
    learner = small_learner()
    inside = Progress(2, 7, {"loss": 3.5})
    save_checkpoint(tmp_path, learner, inside, spec_hash="a", keep=5)
    save_checkpoint(tmp_path, learner, Progress(2), spec_hash="a", keep=5)
    assert load_newest(tmp_path, learner, spec_hash="a") == inside
    # after the batch was halved its steps mean something else, but whole epochs remain whole
    assert load_newest(tmp_path, learner, spec_hash="b", whole_epochs_of=["a"]) == Progress(2)
    save_checkpoint(tmp_path, learner, Progress(3), spec_hash="a", keep=5)
    assert load_newest(tmp_path, learner, spec_hash="a") == Progress(3)


def test_damaged_or_foreign_checkpoints_are_passed_over_for_older_ones(tmp_path):
    learner = small_learner()
    for epoch in (1, 2, 3, 4):
        save_checkpoint(tmp_path, learner, Progress(epoch), spec_hash="a", keep=3)
    assert [path.name[-1] for path in checkpoints(tmp_path)] == ["2", "3", "4"]
    tensors = tmp_path / "epoch-0000004" / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-10])
    (tmp_path / "epoch-0000003" / "manifest.json").write_text("{")
    (tmp_path / ".epoch-0000005.1.tmp").mkdir()
    assert load_newest(tmp_path, learner, spec_hash="a") == Progress(2)
    assert not (tmp_path / ".epoch-0000005.1.tmp").exists()
    assert load_newest(tmp_path, learner, spec_hash="b") == Progress()


def test_spec_hash_is_in_the_name_of_nothing_but_the_manifest(tmp_path):
    path = save_checkpoint(tmp_path, small_learner(), Progress(1), spec_hash=spec_hash(SPEC), keep=1)
    assert json.loads((path / "manifest.json").read_text())["spec_hash"] == spec_hash(SPEC)
