"""GRACE against the formula by hand, in every scope, resumed, and on digits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainer
from tests.trainer.distributed.teams import run_team
from tests.trainer.methods.contrast import (
    CACHED,
    SAMPLED,
    assert_close,
    assert_resumes_to_the_bit,
    dense_loss,
    gradients,
    learner_of,
    only_step,
    planted,
    projected,
    train,
)
from tests.trainer.methods.contrast_team import METHODS, SCOPES, losses
from trainer.config import parse_spec
from trainer.distributed.team import Team
from trainer.errors import InvalidInput
from trainer.presets import merged, preset_document, preset_spec

RUN = """
import json, sys
import trainer
from trainer.config import parse_spec
metrics = trainer.fit(parse_spec(json.loads(sys.argv[1])), sys.argv[2], memory_limit=int(1e11)).metrics
print(metrics["estimated_mb"], metrics["peak_rss_mb"])
"""
GRACE = {"name": "grace", "temperature": 0.4, "projection": 10}


@pytest.fixture(scope="module")
def graph():
    return planted()


def test_loss_and_gradients_equal_the_formula(graph):
    learner = learner_of(graph, GRACE)
    step = only_step(learner, 1)
    loss = learner.spec.method.loss(learner, step)
    loss.total.backward()
    mine = gradients(learner)

    u, v = (projected(learner, part) for part in only_step(learner, 1).embeddings)
    expected = dense_loss(u, v, 0.4, torch.ones(len(u), len(u), dtype=torch.float64))
    expected.backward()
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-10)
    assert loss.metrics["loss"] == loss.total.item()
    assert_close(mine, gradients(learner))
    assert any(name.startswith("parts.projector") for name in mine)


def test_cached_gradients_are_those_of_the_whole_graph(graph):
    found = []
    for sampling in ({}, CACHED):
        learner = learner_of(graph, GRACE, sampling=sampling, encoder={"activation": "relu"})
        step = only_step(learner, 1)
        loss = learner.spec.method.loss(learner, step)
        step.views.backward(loss.total)
        found.append((loss.total.item(), gradients(learner)))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-10)
    assert_close(found[0][1], found[1][1])


def test_a_batch_of_all_nodes_is_the_whole_graph(graph):
    everything = {"batch_size": 200, "num_neighbors": [-1, -1], "negatives": "batch"}
    augment = {"feature_mask": [0, 0]}  # batches draw columns of their own
    whole, batch = (
        train(learner_of(graph, GRACE, sampling=sampling, augment=augment), range(1, 4))
        for sampling in ({}, everything)
    )
    assert whole == pytest.approx(batch, rel=1e-9)


@pytest.mark.parametrize("sampling", [{}, CACHED, SAMPLED], ids=["whole", "cached", "batch"])
def test_it_learns_and_resumes_to_the_bit_in_every_scope(tmp_path, graph, sampling):
    assert_resumes_to_the_bit(tmp_path, graph, GRACE, 3, sampling=sampling)
    losses = train(learner_of(graph, GRACE, sampling=sampling), range(1, 13))
    third = len(losses) // 3
    assert sum(losses[-third:]) < sum(losses[:third])


@pytest.fixture(scope="module")
def team_losses(tmp_path_factory, repo_root):
    folder = tmp_path_factory.mktemp("team")
    run_team(Path(__file__).with_name("contrast_team.py"), 2, folder, repo_root)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", METHODS)
def test_two_workers_have_the_losses_of_one_with_the_doubled_batch(team_losses, name, scope):
    alone = losses(name, scope, 40, Team.solo())
    for worker in team_losses:
        assert worker[f"{name} {scope}"] == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize(
    "setting, value", [("temperature", 0.02), ("temperature", 11), ("projection", 0), ("negatives", 5)]
)
def test_settings_outside_their_bounds_are_refused_by_name(setting, value):
    with pytest.raises(InvalidInput, match=rf"method\.{setting}"):
        parse_spec({"method": {"name": "grace", setting: value}})


def test_a_bank_is_refused(graph):
    with pytest.raises(InvalidInput, match=r"grace cannot be trained with sampling\.negatives=bank"):
        learner_of(graph, GRACE, sampling={**SAMPLED, "negatives": "bank"})


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "photo", "computers", "wikics", "cs", "physics"])
def test_presets_are_the_published_settings(dataset):
    spec = preset_spec("grace", dataset)
    assert spec.data.name == dataset
    assert spec.data.features == "rownorm"
    assert spec.encoder.hidden == 2 * spec.encoder.dim
    assert spec.encoder.last_activation == spec.encoder.activation


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sampling",
    [
        ("grace", {}),
        ("grace", {"batch_size": 1_024}),
        ("grace", {"negatives": "graph", "batch_size": 1_024}),
        ("phases", {}),
        ("progcl", {}),
        ("grace-plus", {}),
    ],
)
def test_a_run_takes_the_memory_that_was_estimated(tmp_path, name, sampling):
    nodes = 9_000 if name == "grace-plus" else 6_000  # so many that its table counts beside the rest
    sizes = {"data": {"synthetic": {"nodes": nodes, "features": 64}}, "optimiser": {"epochs": 3}, "sampling": sampling}
    quick = {"evaluation": {"figures": False, "probe_epochs": 20, "cluster_seeds": 1}, "run": {"track": False}}
    document = merged(merged(preset_document(name, "synthetic"), sizes), quick)
    command = [sys.executable, "-c", RUN, json.dumps(document), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    told, measured = (float(number) for number in done.stdout.split())
    assert 1 / 1.5 < told / measured < 1.5, f"{told:.0f} MB estimated, {measured:.0f} measured"


@pytest.mark.slow
def test_on_digits_it_beats_the_raw_features(tmp_path):
    found = {}
    for name in ("grace", "features"):  # not the untrained encoder, which has 0.967 there
        quick = {"run": {"track": False, "diagnose_every": 0}, "evaluation": {"figures": False, "cluster_seeds": 1}}
        spec = parse_spec(merged(preset_document(name, "digits"), quick))
        found[name] = trainer.fit(spec, tmp_path / name).metrics["eval"]["probe"]["test"]
    assert found["grace"] > found["features"], found
