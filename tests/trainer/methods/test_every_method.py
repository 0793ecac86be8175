"""What holds for every method in trainer.methods: a new one is tested here without another line.

What a run exports is its encoder's readout of the clean graph, a run that was killed goes on to the bit, new nodes get
vectors or a clear refusal, and a team of workers trains as one. Where a method needs other settings to be small, they
go to `SETTINGS` of small_runs.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import trainer
from tests.trainer.distributed.teams import run_team
from tests.trainer.methods.every_team_member import NAMES as TEAM_NAMES
from tests.trainer.methods.every_team_member import losses
from tests.trainer.methods.small_runs import small_graph, small_spec
from trainer.distributed.team import Team
from trainer.errors import InvalidInput
from trainer.export.embeddings import read_embeddings, read_encoder
from trainer.inference.features import Preparation
from trainer.inference.new_nodes import embed_new_nodes
from trainer.learning.learner import Learner
from trainer.methods import BY_NAME
from trainer.nn.sparse import SparseOperator
from trainer.nn.views import Propagation
from trainer.presets import preset_spec
from trainer.run.checkpoint import checkpoints, load_newest
from trainer.run.directory import read_events

NAMES = list(BY_NAME)
IN_BATCHES = [name for name, method in BY_NAME.items() if "batch" in method.scopes]
BATCHES = {"sampling": {"negatives": "batch", "batch_size": 30}, "run": {"checkpoint_minutes": 1e-9}}


class Killed(BaseException):
    """What a run cannot catch."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directory of an uninterrupted run of each method, trained when first asked for."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def run_of(name: str) -> Path:
        if name not in done:
            done[name] = trainer.fit(small_spec(name), folder / name, graph=small_graph()).directory
        return done[name]

    return run_of


def curve(run: Path) -> dict[int, float]:
    """The loss of each epoch; of one that was trained twice, the latest."""
    return {event["epoch"]: event["metrics"]["loss"] for event in read_events(run) if event["type"] == "epoch"}


def fit_killed(name: str, over: dict, run: Path, monkeypatch) -> list[str]:
    """Train, end it before the last step of all, and go on; returns the checkpoints that there were between."""
    step = Learner.step

    def deadly(self, at):
        if at.number == self.total_steps - 1:
            raise Killed
        return step(self, at)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "step", deadly)
        with pytest.raises(Killed):
            trainer.fit(small_spec(name, over), run, graph=small_graph())
    left = [path.name for path in checkpoints(run / "checkpoints")]
    trainer.fit(small_spec(name, over), run, graph=small_graph(), resume=True)
    return left


@pytest.mark.parametrize("name", NAMES)
def test_what_is_exported_is_the_readout_of_the_clean_graph_in_eval_mode(name, runs):
    run, spec, graph = runs(name), small_spec(name), small_graph()
    vectors, _ = read_embeddings(run / "embeddings")
    learner = Learner(spec.model_copy(update={"sampling": planned_sampling(run)}), graph)
    load_newest(run / "checkpoints", learner, spec_hash=json.loads((run / "plan.json").read_text())["spec_hash"])
    x = graph.x.double()
    features = SparseOperator(x) if x.layout == torch.sparse_csr else x
    view = Propagation(graph.indptr, graph.indices, graph.weight, torch.float64).whole()
    for encoder in (
        learner.finished_encoder().eval(),
        read_encoder(run / "embeddings" / "encoder.safetensors", spec.encoder),
    ):
        with torch.no_grad():
            expected = encoder.readout(features, view).numpy()
        np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-6)


def planned_sampling(run: Path):
    from trainer.spec.training import SamplingSpec

    return SamplingSpec.model_validate(json.loads((run / "plan.json").read_text())["sampling"])


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_goes_on_to_the_bit(name, runs, tmp_path, monkeypatch):
    fit_killed(name, {}, tmp_path / "killed", monkeypatch)
    assert curve(tmp_path / "killed") == curve(runs(name))
    assert vectors_of(tmp_path / "killed") == vectors_of(runs(name))


@pytest.mark.parametrize("name", IN_BATCHES)
def test_a_run_killed_in_the_middle_of_an_epoch_goes_on_to_the_bit(name, tmp_path, monkeypatch):
    left = fit_killed(name, BATCHES, tmp_path / "killed", monkeypatch)
    assert "step" in left[-1]
    whole = trainer.fit(small_spec(name, BATCHES), tmp_path / "whole", graph=small_graph()).directory
    assert curve(tmp_path / "killed") == curve(whole)
    assert vectors_of(tmp_path / "killed") == vectors_of(whole)


def vectors_of(run: Path) -> bytes:
    return (run / "embeddings" / "vectors.npy").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_node_that_comes_again_as_a_new_one_gets_its_vector_or_a_refusal_that_says_what_to_do(name, runs):
    spec, graph = small_spec(name), small_graph()
    vectors, _ = read_embeddings(runs(name) / "embeddings")
    encoder = read_encoder(runs(name) / "embeddings" / "encoder.safetensors", spec.encoder)
    neighbours = graph.indices[graph.indptr[7] : graph.indptr[8]].numpy()
    request = {
        "features": graph.x.to_dense()[[7]].numpy(), "edge_node": np.zeros(len(neighbours), np.int64),
        "edge_other": neighbours, "replaces": np.array([7]),
    }  # fmt: skip
    preparation = Preparation("raw", graph.num_features, graph.x.layout == torch.sparse_csr)
    if encoder.spec.at_once:
        with pytest.raises(InvalidInput, match="Train again"):
            embed_new_nodes(encoder, graph, preparation, 1, request)
        return
    found = embed_new_nodes(encoder, graph, preparation, 1, request)
    np.testing.assert_allclose(found[0], vectors[7], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dataset", ["digits", "synthetic", "files", "cora", "citeseer", "pubmed", "photo", "computers",
                                     "wikics", "cs", "physics"])  # fmt: skip
def test_there_is_a_preset_for_every_data_set(name, dataset):
    if dataset == "files":
        assert isinstance(BY_NAME[name].preset(dataset), dict)
        return
    spec = preset_spec(name, dataset)
    assert (spec.method.name, spec.data.name) == (name, dataset)
    assert all(len(text) > 3 for text in (spec.method.title, spec.method.paper, spec.method.summary))
    if dataset in ("digits", "synthetic"):
        assert spec.optimiser.epochs <= 200, "a first try should not take long"


@pytest.fixture(scope="module")
def teams(tmp_path_factory, repo_root):
    folder = tmp_path_factory.mktemp("team")
    run_team(Path(__file__).with_name("every_team_member.py"), 2, folder, repo_root)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", TEAM_NAMES)
def test_two_workers_have_the_losses_of_one_with_the_doubled_batch(name, teams):
    alone = losses(name, 40, Team.solo())
    for worker in teams:
        assert worker[name] == pytest.approx(alone, rel=1e-9)
