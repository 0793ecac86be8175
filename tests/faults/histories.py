"""What must be true of jobs whatever happened to the processes: one end, one history, one MLflow run, one curve."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.client import Client
from service.store import Store
from service.store.records import TERMINAL, Event
from trainer.config import TrainSpec, parse_spec
from trainer.files.journal import REWIND, fold
from trainer.run.directory import read_events

TIMING = {"seconds", "cpu_seconds", "rss_mb"}  # all that may differ between two equal runs


def small_spec(seed: int = 0, epochs: int = 40, **sections: dict[str, Any]) -> dict[str, Any]:
    """Trains for a second or two, with a checkpoint every few epochs."""
    document: dict[str, Any] = {
        "data": {"name": "synthetic", "synthetic": {"nodes": 300, "features": 32, "active_features": 8}},
        "encoder": {"hidden": 64, "dim": 32},
        "method": {"inner_steps": 1, "metric": {"hidden": 32}},
        "optimiser": {"epochs": epochs},
        "evaluation": {"figures": False, "probe_epochs": 50},
        "run": {"seed": seed, "threads": 1, "checkpoint_every": 5, "experiment": "faults"},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    return document


def uninterrupted(document: dict[str, Any], directory: Path) -> list[dict[str, float]]:
    """The curve of the same spec, trained here and now in one go."""
    from trainer.loop import fit

    spec: TrainSpec = parse_spec(document)
    fit(spec, directory)
    return written_curve(directory)


def written_curve(directory: Path) -> list[dict[str, float]]:
    """The epochs' numbers as the trainer wrote them."""
    return [without_timing(event["metrics"]) for event in read_events(directory) if event["type"] == "epoch"]


def check_history(events: Sequence[Event], state: str) -> None:
    """Numbered without gaps, one terminal state and that is the last event, attempts in order."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    states = [event.data["state"] for event in events if event.type == "state"]
    assert [name for name in states if name in TERMINAL] == [state]
    assert events[-1].type == "state"
    attempts = [event.data["attempt"] for event in events if event.type == "state" and event.data["state"] == "running"]
    assert attempts == list(range(1, len(attempts) + 1))


def curve(events: Sequence[Event]) -> list[dict[str, float]]:
    """The epochs' numbers, with rewinds applied; each epoch must be there once, and told again to the bit."""
    told = [event.data for event in events if event.type in ("epoch", REWIND)]
    first: dict[int, dict[str, float]] = {}
    for event in told:
        if event["type"] == "epoch":
            metrics = without_timing(event["metrics"])
            assert first.setdefault(event["epoch"], metrics) == metrics
    epochs = fold(told)
    assert [event["epoch"] for event in epochs] == list(range(1, len(epochs) + 1))
    return [without_timing(event["metrics"]) for event in epochs]


def mlflow_runs(uri: str, experiment: str) -> list[Any]:
    """All runs of an experiment, read by MLflow itself."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id], max_results=1_000))


def without_timing(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in TIMING}


def wait_all(client: Client, ids: Sequence[str], seconds: float) -> dict[str, str]:
    """States of the jobs once all have ended."""
    end, states = time.monotonic() + seconds, dict.fromkeys(ids, "")
    while not all(state in TERMINAL for state in states.values()):
        assert time.monotonic() < end, f"after {seconds:g} s: {states}"
        time.sleep(0.5)
        for job_id, state in states.items():
            if state not in TERMINAL:
                states[job_id] = client.job(job_id).state
    return states


def all_events(store: Store, job_id: str) -> list[Event]:
    """A job's whole history."""
    events: list[Event] = []
    while page := store.events.after(job_id, len(events)):
        events += page
    return events
