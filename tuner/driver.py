"""The process that runs a sweep on Ray Tune: `python -m tuner.driver ROOM`, started by tuner.sweep.

Ray Tune places the trials, starts them, hears them and ends them. What is tried next (tuner.searcher), who goes on
(tuner.schedule) and what has happened (tuner.journal) are ours, and live in the sweep directory: after a restart a new
Tune is given what is left to do.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import version
from trainer.errors import Cancelled, Infrastructure, InvalidInput
from trainer.parallel.child import main
from trainer.parallel.cluster import connected
from trainer.parallel.connection import LOCAL
from trainer.planning.memory import usable_memory
from tuner.config import SweepSpec, default_starts, parse_sweep, sweep_hash
from tuner.data import prepare
from tuner.figures import draw_all
from tuner.journal import Journal
from tuner.results import best_trial, write_results
from tuner.schedule import settle_stopped
from tuner.space import Value

if TYPE_CHECKING:
    from tuner.tracking import SweepTracker

log = logging.getLogger("tuner")
LOCK_SECONDS = 30.0  # a driver whose parent was killed ends within this time
TRACKER_SECONDS = 60.0  # that the end of a sweep waits for MLflow at most


class NoTrialSucceeded(InvalidInput):
    """Every trial failed: the base or the space must change."""


def work(job: Mapping[str, Any], room: Path) -> None:
    """Run the sweep that the job names to its end.

    Raises:
        TrainerError: Cancelled on SIGTERM or SIGINT; InvalidInput for a spec, data or directory that does not do, and
            if no trial succeeded; Infrastructure.
    """
    ending = _Ending()
    spec, sweep = parse_sweep(job["spec"]), Path(job["sweep"])
    journal = Journal.open(sweep, spec, patience=LOCK_SECONDS)
    try:
        _log_to(sweep / "log.txt")
        graph = prepare(spec, sweep)
        starts = list(spec.starts) if spec.starts is not None else default_starts(spec, graph.num_nodes)
        nodes, edges = graph.num_nodes, graph.num_edges
        del graph  # trials open it themselves
        tracker = _tracker(journal) if spec.base.run.track else None
        _settle(journal)
        if _is_over(journal):
            log.info("nothing is left to run")
        else:
            with connected(job, room):
                ending.listen()  # Ray has put handlers of its own in place, which abort
                concurrency = _concurrency(spec, job["address"])
                journal.record(
                    "start" if journal.is_new else "resume", spec_hash=sweep_hash(spec), objective=spec.objective,
                    trials=spec.trials, concurrency=concurrency, version=version(), nodes=nodes, edges=edges,
                    host=platform.node(), pid=os.getpid(),
                )  # fmt: skip
                _run_trials(job, journal, starts, concurrency, room, ending)
        _conclude(journal, tracker, ending)
    finally:
        journal.close()


def _run_trials(
    job: Mapping[str, Any], journal: Journal, starts: list[dict[str, Value]], concurrency: int, room: Path,
    ending: _Ending,
) -> None:  # fmt: skip
    """Give Ray Tune what is left to do, and return when it is done or the sweep is to end."""
    from ray import tune

    from tuner.schedule import JournalScheduler
    from tuner.searcher import JournalSearcher
    from tuner.trial import run_trial
    from tuner.watch import EndOfSweep, Watch

    own = journal.spec.resources
    memory = None if own.memory_gb is None else int(own.memory_gb * 2**30)
    if memory is None and job["address"] == LOCAL:  # on a cluster each machine knows its own
        memory = usable_memory() // concurrency
    scheduler, searcher = JournalScheduler(journal), JournalSearcher(journal, starts)
    resources = {"CPU": own.cpus, "GPU": own.gpus} | ({} if own.memory_gb is None else {"memory": memory})
    tuner = tune.Tuner(
        tune.with_resources(run_trial, resources),
        param_space={"sweep": str(journal.path), "cwd": job["cwd"], "memory": memory},
        tune_config=tune.TuneConfig(
            search_alg=searcher, scheduler=scheduler, num_samples=-1, max_concurrent_trials=concurrency,
            reuse_actors=True,  # a process that has loaded torch serves the next trial too
        ),
        run_config=tune.RunConfig(
            name="sweep", storage_path=str(room / "storage"), verbose=0, stop=EndOfSweep(journal, ending.requested),
            callbacks=[Watch(journal, scheduler)],
            failure_config=tune.FailureConfig(max_failures=0),  # retries go through the searcher, as resuming does
        ),
    )  # fmt: skip
    tuner.fit()


def _tracker(journal: Journal) -> SweepTracker:
    """MLflow's view of the sweep, told of the past and from now on of every line."""
    from tuner.tracking import SweepTracker  # loads MLflow's side only where it is wanted

    tracker = SweepTracker(journal.path, journal.spec)
    for event in journal.events:
        tracker.tell(event)
    journal.listeners.append(tracker.tell)
    return tracker


def _settle(journal: Journal) -> None:
    """Close trials that were told to stop just before a kill."""
    for record in list(journal.trials.values()):
        if not record.is_final and record.reports and record.reports[-1].decision == "stop":
            settle_stopped(journal, record)


def _is_over(journal: Journal) -> bool:
    from tuner.watch import out_of_time

    if out_of_time(journal):
        return True
    if any(not record.is_final for record in journal.trials.values()):
        return False
    return bool(journal.events) and (journal.events[-1]["type"] == "end" or len(journal.trials) >= journal.spec.trials)


def _conclude(journal: Journal, tracker: SweepTracker | None, ending: _Ending) -> None:
    """Say how the sweep ended, and leave its table, figures and best spec.

    Raises:
        Cancelled: it was asked to end and can be resumed.
        NoTrialSucceeded: there is nothing to choose from.
    """
    from tuner.watch import out_of_time

    sweep, spec, trials = journal.path, journal.spec, journal.trials
    cancelled = ending.requested() and not _is_over(journal)
    if out_of_time(journal):
        for record in [record for record in trials.values() if not record.is_final]:
            journal.record(
                "done", number=record.number, state="ended", value=record.last_value, values=[], epoch=record.epoch,
                seconds=record.seconds, error=f"the sweep's {spec.budget_minutes:g} minutes were over",
            )  # fmt: skip
    write_results(sweep, spec, trials)
    draw_all(sweep / "figures", spec, trials)
    best = best_trial(trials)
    if cancelled:
        journal.record("cancelled")
    elif not journal.events or journal.events[-1]["type"] != "end":
        state = "failed" if best is None else "succeeded"
        number, value = (None, None) if best is None else (best.number, best.last_value)
        journal.record("end", state=state, best=number, value=value)
    if tracker is not None:
        files = [sweep / name for name in ("spec.json", "best.json", "results.csv", "results.json")]
        files += sorted((sweep / "figures").glob("*"))
        tracker.end([file for file in files if file.exists()], TRACKER_SECONDS)
    if cancelled:
        done = sum(record.is_final for record in trials.values())
        raise Cancelled(f"stopped on request with {done} of {spec.trials} trials done; the same command goes on")
    if best is None:
        errors = [record.error for record in trials.values() if record.error]
        raise NoTrialSucceeded(f"no trial of {len(trials)} succeeded. The first said: {(errors or ['nothing'])[0]}")


def _concurrency(spec: SweepSpec, address: str) -> int:
    """Trials at a time.

    Raises:
        InvalidInput: this machine has not enough for one trial.
        Infrastructure: the cluster has not, at the moment.
    """
    import ray

    has, wants = ray.cluster_resources(), spec.resources
    room = [int(has.get("CPU", 0) // wants.cpus)]
    if wants.gpus:
        room.append(int(has.get("GPU", 0) / wants.gpus))
    if wants.memory_gb is not None:
        room.append(int(has.get("memory", 0) // (wants.memory_gb * 2**30)))
    if min(room) < 1:
        kind = InvalidInput if address == LOCAL else Infrastructure
        place = "this machine" if address == LOCAL else f"the Ray cluster at {address}"
        raise kind(
            f"a trial asks for {wants.cpus} CPUs, {wants.gpus:g} GPUs and {wants.memory_gb or 0:g} GB, and {place} has "
            f"{has.get('CPU', 0):g}, {has.get('GPU', 0):g} and {has.get('memory', 0) / 2**30:.1f}. Lower resources."
        )
    return min(*room, spec.concurrency) if spec.concurrency else min(room)


class _Ending:
    """Whether someone asked the sweep to end: SIGTERM, SIGINT, or the death of the process that wanted it."""

    def __init__(self) -> None:
        self._asked = False
        self.listen()

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def requested(self) -> bool:
        return self._asked

    def _note(self, number: int, _: object) -> None:
        if self._asked:  # twice: now
            sys.exit(128 + number)
        self._asked = True
        log.warning("%s: ending the trials", signal.Signals(number).name)


def _log_to(file: Path) -> None:
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


if __name__ == "__main__":
    main(Path(sys.argv[1]), work)
