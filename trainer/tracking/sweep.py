"""What MLflow is told of a sweep: a parent run, and nested in it one run per trial.

The sweep's journal (described in tuner.journal) says which trials there are, what they reported and how they ended.
Their epochs are in the journals of their run directories, trials/NUMBER/seed-SEED.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from trainer.config import parse_spec, spec_hash
from trainer.files.journal import Event
from trainer.tracking.source import Description, Ending, Source, Status, error_tag, flatten, points, read_json

_STATUS: dict[str, Status] = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "ended": "KILLED"}


class SweepSource(Source):
    """The sweep itself, and its trials by number. Whoever has reported a trial in full may remove it."""

    artifacts = ("spec.json", "best.json", "results.csv", "results.json", "figures/*")
    interrupted = Ending("KILLED", {"state": "interrupted"}, final=False)

    def __init__(self, directory: Path):
        super().__init__(directory)
        self.trials: dict[int, TrialSource] = {}
        self._spec: dict[str, Any] = {}
        self._tags: dict[str, str] = {}  # of the parent and of each trial
        self._done: Counter[str] = Counter()  # trials by state
        self._best: dict[str, float] = {}  # objective by state

    def take(self, event: Event) -> None:
        match event["type"]:
            case "start" | "resume":
                self._begin(event)
            case "trial":
                self.trials[event["number"]] = TrialSource(self.directory, self._spec, event, self._tags)
            case "done":
                self._count(event)
            case "cancelled":
                error = "Cancelled: stopped on request; a resume goes on from there"
                self.ending = Ending("KILLED", {"state": "cancelled", "error": error}, final=False)
            case "end":
                best = {} if event["best"] is None else {"best_trial": str(event["best"])}
                status: Status = "FINISHED" if event["state"] == "succeeded" else "FAILED"
                self.ending = Ending(status, {"state": event["state"], **best})
        if event.get("number") in self.trials:
            self.trials[event["number"]].take(event)

    def _begin(self, event: Event) -> None:
        self._spec, self.ending = read_json(self.directory / "spec.json"), None
        base = self._spec["base"]
        self._tags = {
            "sweep_hash": event["spec_hash"], "dataset": base["data"]["name"], "method": base["method"]["name"],
            "preset": base["preset"] or "", "protocol": base["evaluation"]["protocol"],
            "version": str(event.get("version", "")),
        }  # fmt: skip
        # A dimension is one parameter: its kind and bounds belong together.
        space = {path: json.dumps(dimension) for path, dimension in event.get("space", {}).items()}
        graph = {"num_nodes": event["nodes"], "num_edges": event["edges"]} if "nodes" in event else {}
        self.description = Description(
            experiment=base["run"]["experiment"],
            name=base["run"]["name"] or f"{base['data']['name']}-sweep-{event['spec_hash'][:8]}",
            params={**self._spec, "space": space, "graph": graph},
            tags={**self._tags, **parse_spec(base).method.tags(), "state": "running"},
        )

    def _count(self, event: Event) -> None:
        """The parent's curves, by how many trials are done; the best is chosen as tuner.results does it."""
        state, value = event["state"], event["value"]
        self._done[state] += 1
        if value is not None:
            self._best[state] = max(self._best.get(state, value), value)
        metrics = {f"trials_{name}": float(self._done[name]) for name in _STATUS}
        best = self._best.get("finished", self._best.get("ended"))
        if best is not None:
            metrics["best_objective"] = best
        self.points += points(metrics, event, step=self._done.total())


class TrialSource(Source):
    """One trial: its events in the sweep's journal, and the epochs of its runs, one for each seed.

    Args:
        spec: of the sweep.
        event: the trial's "trial" event in the sweep's journal.
        tags: what all trials of the sweep have in common.
    """

    interrupted = Ending("KILLED", {"state": "waiting"}, final=False)

    def __init__(self, sweep: Path, spec: dict[str, Any], event: Event, tags: dict[str, str]):
        number, first = event["number"], spec["base"]["run"]["seed"]
        directory = sweep / "trials" / f"{number:04d}"
        seeds = range(first, first + spec["seeds"])
        super().__init__(directory, *(directory / f"seed-{seed}" for seed in seeds))
        self.has_begun = False
        self._prefixes = ["", *(f"seed_{seed}/" for seed in seeds[1:])]
        self._spec_file, self._changes = directory / f"seed-{first}" / "spec.json", event["changes"]
        self._experiment, self._name = spec["base"]["run"]["experiment"], f"trial-{number:04d}"
        self._tags = {**tags, "trial": str(number), "origin": event["origin"]}
        self._objective: tuple[int, float | None] = 0, None  # last epoch and value that the first seed reported

    def advance(self) -> bool:
        """Read the next part of the epochs of each seed."""
        for prefix, reader in zip(self._prefixes, self._readers, strict=True):
            for event, _ in reader.read():
                if event["type"] == "epoch":
                    self.points += points(event.get("metrics"), event, prefix=prefix)
        if self.has_begun and self.description is None:
            self.description = self._described()
        return not all(reader.at_end for reader in self._readers)

    def take(self, event: Event) -> None:
        """An event of the sweep's journal about this trial."""
        match event["type"]:
            case "running":
                self.has_begun, self.ending = True, None
            case "report":
                self.has_begun, self.ending = True, None
                self.points += points({"objective": event["value"]}, event, prefix=self._prefixes[event["run"]])
                if event["run"] == 0:
                    self._objective = event["epoch"], event["value"]
            case "done":
                self._end(event)

    def _end(self, event: Event) -> None:
        self.has_begun = True
        epoch, value = self._objective
        if event["value"] is not None and event["value"] != value:
            # The mean over seeds comes after the first one's curve, so that MLflow shows and sorts by it.
            self.points += points({"objective": event["value"]}, event, step=max(epoch, event["epoch"]) + 1)
        # Not "seconds": that is what each epoch took.
        self.points += points({"trial_seconds": event["seconds"], "trial_epochs": event["epoch"]}, event)
        error = {"error": error_tag(event["error"])} if event["error"] else {}
        # A trial that the time limit cut off goes on if the sweep gets more time.
        self.ending = Ending(_STATUS[event["state"]], {"state": event["state"], **error}, event["state"] != "ended")

    def _described(self) -> Description | None:
        """From the spec that the first seed trains; a trial that failed before it had one is named by its changes."""
        document = read_json(self._spec_file)
        if not document and self.ending is None:
            return None  # its process is still starting
        tags = {**self._tags, "state": "running"}
        if document:
            trained = parse_spec(document)
            tags |= {**trained.method.tags(), "spec_hash": spec_hash(trained)}
        return Description(self._experiment, self._name, flatten(document) | self._changes, tags)
