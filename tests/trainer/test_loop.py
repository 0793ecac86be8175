"""A run from spec to metrics: reproducible, interruptible, honest about failure. Real processes, real signals."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trainer
from tests.trainer.held_run import start, wait_for_event
from trainer.callbacks import Callback, Signal
from trainer.config import parse_spec
from trainer.errors import Infrastructure, InvalidInput, NonFinite, OutOfMemory
from trainer.export.embeddings import read_embeddings
from trainer.learning.learner import Learner
from trainer.run.directory import read_events
from trainer.training.failures import translated_failures

DOCUMENT = {
    "data": {"name": "synthetic", "synthetic": {"nodes": 300, "classes": 3, "features": 30, "active_features": 6}},
    "encoder": {"hidden": 32, "dim": 16, "activation": "rrelu_random"},
    "method": {"inner_steps": 2, "metric": {"hidden": 16}},
    "optimiser": {"epochs": 12, "lr": 0.005},
    "evaluation": {"probe_epochs": 50, "cluster_seeds": 1, "figures": False},
    "run": {"track": False, "checkpoint_every": 5, "threads": 1},
}


def document(**sections):
    return {name: {**DOCUMENT.get(name, {}), **sections.get(name, {})} for name in {*DOCUMENT, *sections}}


def curve(run: Path) -> list[tuple[int, float, float]]:
    events = [event for event in read_events(run) if event["type"] == "epoch"]
    return [(event["epoch"], event["metrics"]["loss"], event["metrics"]["kl"]) for event in events]


def wait_for_epoch(run: Path, epoch: int, process: subprocess.Popen) -> None:
    wait_for_event(run, lambda event: event.get("epoch", 0) >= epoch, process)


def test_a_run_leaves_everything_the_design_promises(tmp_path):
    spec = parse_spec(document(evaluation={"figures": True}))
    result = trainer.fit(spec, tmp_path / "run")
    run = tmp_path / "run"
    for name in ("spec.json", "events.jsonl", "log.txt", "metrics.json", "embeddings/manifest.json"):
        assert (run / name).exists(), name
    assert {file.name for file in (run / "figures").iterdir()} >= {
        "loss.png",
        "mi.png",
        "weights.png",
        "similarity.png",
        "map.png",
    }
    assert [epoch for epoch, _, _ in curve(run)] == list(range(1, 13))
    vectors, ids = read_embeddings(run / "embeddings")
    assert vectors.shape == (300, 16)
    assert len(ids) == 300
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics == json.loads(json.dumps(dict(result.metrics)))
    assert metrics["eval"]["probe"]["test"] > 1 / 3
    assert metrics["train"]["loss"] < curve(run)[0][1]
    assert not list(run.rglob("*.pkl"))
    assert not list(run.rglob("*.pt"))


def test_same_seed_same_numbers_other_seed_other_numbers(tmp_path):
    one, two = (trainer.fit(parse_spec(document()), tmp_path / name) for name in ("one", "two"))
    assert curve(one.directory) == curve(two.directory)
    assert one.embeddings.read_bytes() == two.embeddings.read_bytes()
    other = trainer.fit(parse_spec(document(run={"seed": 1})), tmp_path / "three")
    assert curve(other.directory) != curve(one.directory)


@pytest.mark.slow
def test_kill_minus_nine_and_resume_give_the_uninterrupted_curve_and_embeddings(tmp_path):
    spec = document(optimiser={"epochs": 300})
    whole = trainer.fit(parse_spec(spec), tmp_path / "whole")
    killed = tmp_path / "killed"
    for target in (7, 150):  # twice: soon after the first checkpoint, and again in the middle
        process = start(spec, killed, "--resume", hold=f'"type": "epoch".*"epoch": {target},')
        wait_for_epoch(killed, target, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (killed / "metrics.json").exists()
    process = start(spec, killed, "--resume")
    assert process.wait() == 0, process.stderr.read()
    assert curve(killed) == curve(whole.directory)
    assert (killed / "embeddings/vectors.npy").read_bytes() == whole.embeddings.read_bytes()


def test_sigterm_finishes_the_epoch_checkpoints_and_exits_as_cancelled(tmp_path):
    run = tmp_path / "run"
    process = start(document(optimiser={"epochs": 100_000}, run={"checkpoint_every": 100_000}), run)
    wait_for_epoch(run, 3, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 6
    last = read_events(run)[-1]
    assert last["type"] == "cancelled"
    assert (run / "checkpoints" / f"epoch-{last['epoch']:07d}" / "manifest.json").exists()


def test_a_finished_run_resumed_changes_nothing(tmp_path):
    spec = parse_spec(document())
    before = trainer.fit(spec, tmp_path / "run")
    vectors, metrics = before.embeddings.read_bytes(), dict(before.metrics)
    after = trainer.fit(spec, tmp_path / "run", resume=True)
    assert after.embeddings.read_bytes() == vectors
    assert after.metrics["eval"]["probe"] == metrics["eval"]["probe"]
    assert len(curve(tmp_path / "run")) == 12


def test_a_callback_can_stop_the_run_early(tmp_path):
    class StopAtFour(Callback):
        def on_epoch(self, event):
            return Signal.STOP if event["epoch"] == 4 else None

    result = trainer.fit(parse_spec(document()), tmp_path / "run", callbacks=[StopAtFour()])
    assert (result.epochs, result.stopped_early) == (4, True)
    assert result.embeddings.exists()


class PoisonedWeights(Callback):
    """Puts a NaN into the encoder once it is built, as an overflow would."""

    def on_start(self, run):
        (learner,) = (thing for thing in gc.get_objects() if isinstance(thing, Learner))
        learner.encoder.weights[0].data.fill_(float("nan"))


def test_a_loss_that_is_not_a_number_ends_the_run_as_invalid_with_advice(tmp_path):
    gc.collect()  # learners of earlier tests
    with pytest.raises(NonFinite, match=r"optimiser\.lr") as caught:
        trainer.fit(parse_spec(document()), tmp_path / "run", callbacks=[PoisonedWeights()])
    assert caught.value.kind == "invalid"
    assert not (tmp_path / "run" / "metrics.json").exists()
    last = read_events(tmp_path / "run")[-1]
    assert (last["type"], last["kind"], last["message"]) == ("failed", "invalid", str(caught.value))


def test_exit_codes_tell_the_kind_of_failure(tmp_path):
    wrong = start({"method": {"temperature": -1}}, tmp_path / "wrong")
    assert wrong.wait() == 3
    assert "method.temperature" in wrong.stderr.read()
    run = tmp_path / "busy"
    busy = start(document(optimiser={"epochs": 100_000}), run)
    wait_for_epoch(run, 1, busy)
    second = start(document(optimiser={"epochs": 100_000}), run, "--resume")
    assert second.wait() == 5
    assert "another process" in second.stderr.read()
    busy.kill()
    busy.wait()


@pytest.mark.parametrize(
    "raised, kind",
    [
        (MemoryError(), OutOfMemory),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
            OutOfMemory,
        ),
        (RuntimeError("unable to mmap 8 bytes from file <state>: Cannot allocate memory (12)"), OutOfMemory),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), OutOfMemory),
        (OSError(errno.ENOSPC, "No space left on device"), Infrastructure),
    ],
)
def test_memory_and_disk_failures_get_their_kind(raised, kind):
    with pytest.raises(kind, match="--resume"), translated_failures():
        raise raised


def test_a_real_allocation_failure_is_out_of_memory(tmp_path):
    """Under an address-space limit, torch's own error must come out with exit code 4."""
    file = tmp_path / "big.json"
    spec = document(
        data={"name": "synthetic", "synthetic": {"nodes": 4000, "classes": 3, "features": 30, "active_features": 6}},
        encoder={"hidden": 8192, "dim": 8192},
    )
    file.write_text(json.dumps(spec))
    code = (
        "import resource, sys, torch, torch_geometric, trainer.loop\n"
        "from trainer.__main__ import main\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 500 * 2**20,) * 2)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, str(file), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 4, done.stderr[-2000:]
    assert "nml estimate" in done.stderr


def test_without_cuda_asking_for_it_is_a_clear_error(tmp_path):
    import torch

    if torch.cuda.is_available():
        assert trainer.fit(parse_spec(document(run={"device": "cuda"})), tmp_path / "run").epochs == 12
    else:
        with pytest.raises(InvalidInput, match="auto or cpu"):
            trainer.fit(parse_spec(document(run={"device": "cuda"})), tmp_path / "run")


def test_float64_and_float32_agree(tmp_path):
    runs = [
        trainer.fit(parse_spec(document(run={"dtype": dtype}, optimiser={"epochs": 2})), tmp_path / dtype)
        for dtype in ("float32", "float64")
    ]
    one, two = (np.load(run.embeddings) for run in runs)
    # RReLU draws differ between dtypes; the scale of the result must not
    assert np.linalg.norm(one) == pytest.approx(np.linalg.norm(two), rel=0.1)
