"""The process that runs a sweep on Ray Tune: `python -m tuner.driver ROOM`, started by tuner.sweep.

Ray Tune places the trials, starts them, hears them and ends them. What is tried next (tuner.searcher), who goes on
(tuner.schedule) and what has happened (tuner.journal) are ours, and live in the sweep directory: after a restart a new
Tune is given what is left to do.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from trainer.errors import Cancelled, Infrastructure, InvalidInput
from trainer.parallel.child import clear_rooms, main
from trainer.parallel.cluster import connected
from trainer.planning.shape import shape_of
from trainer.process.stop_signals import StopRequest
from trainer.process.version import version
from trainer.tracking import Tracker
from tuner.config import default_starts, parse_sweep, sweep_hash
from tuner.data import prepare
from tuner.figures import draw_all
from tuner.journal import Journal
from tuner.plan import Arrangement, arrange
from tuner.results import best_trial, furthest, write_results
from tuner.schedule import settle_stopped
from tuner.space import Value

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
    stop = StopRequest("ending the trials", log=log)
    stop.listen()
    spec, sweep = parse_sweep(job["spec"]), Path(job["sweep"])
    journal = Journal.open(sweep, spec, patience=LOCK_SECONDS)
    try:
        clear_rooms(sweep, keep=room)
        _log_to(sweep / "log.txt")
        graph = prepare(spec, sweep)
        data: dict[str, Any] = {"nodes": graph.num_nodes, "edges": graph.num_edges, "graph_sha256": graph.fingerprint()}
        starts = list(spec.starts) if spec.starts is not None else default_starts(spec, graph.num_nodes)
        shape = shape_of(graph)
        del graph  # trials open it themselves
        _check_same(journal, data["graph_sha256"])
        trouble = None
        if _is_over(journal) or stop.is_set():
            tracker = _tracker(journal)
            _settle(journal)
        else:
            with connected(job, room):
                stop.listen()  # Ray has put handlers of its own in place, which abort
                arranged = arrange(spec, shape, job["address"], _resources(), _decided(journal))
                tracker = _tracker(journal)
                journal.record(
                    "resume" if journal.has_begun else "start", spec_hash=sweep_hash(spec), objective=spec.objective,
                    trials=spec.trials, concurrency=arranged.concurrency, sampling=arranged.sampling, **data,
                    space={path: dimension.model_dump(mode="json") for path, dimension in spec.dimensions().items()},
                    version=version(), host=platform.node(), pid=os.getpid(),
                )  # fmt: skip
                _settle(journal)
                trouble = _run_trials(job, journal, starts, arranged, room, stop)
        _conclude(journal, tracker, stop, trouble)
    finally:
        journal.close()


def _run_trials(
    job: Mapping[str, Any], journal: Journal, starts: list[dict[str, Value]], arranged: Arrangement, room: Path,
    stop: StopRequest,
) -> str | None:  # fmt: skip
    """Give Ray Tune what is left to do; returns when that is done, or the sweep is to end, and why if it is trouble."""
    from ray import tune
    from ray.tune.search import ConcurrencyLimiter

    from tuner.schedule import JournalScheduler
    from tuner.searcher import JournalSearcher
    from tuner.trial import run_trial
    from tuner.watch import EndOfSweep, Watch, ended_for_memory

    own, lives = journal.spec.resources, 0
    resources: dict[str, Any] = {"CPU": own.cpus, "GPU": own.gpus}
    if own.memory_gb is not None:
        resources["memory"] = arranged.memory
    while True:
        scheduler = JournalScheduler(journal)
        searcher = JournalSearcher(journal, starts, arranged.sampling)
        limiter = ConcurrencyLimiter(searcher, max_concurrent=arranged.concurrency)
        watch = Watch(journal, scheduler, limiter)
        tuner = tune.Tuner(
            tune.with_resources(run_trial, resources),
            param_space={
                "sweep": str(journal.path), "cwd": job["cwd"], "memory": arranged.memory, "gpus": own.gpus,
            },
            tune_config=tune.TuneConfig(
                search_alg=limiter, scheduler=scheduler, num_samples=-1,
                reuse_actors=True,  # a process that has loaded torch serves the next trial too
            ),
            run_config=tune.RunConfig(
                name=f"sweep-{lives}", storage_path=str(room / "storage"), verbose=0, callbacks=[watch],
                stop=EndOfSweep(journal, stop.is_set, watch),
                failure_config=tune.FailureConfig(max_failures=0),  # retries go through the searcher, as resuming does
            ),
        )  # fmt: skip
        try:
            tuner.fit()
            return watch.trouble
        except Exception as error:  # Tune gives up as a whole where Ray ended a trial to free memory
            if not ended_for_memory(error):
                raise
            log.warning("Ray ended a trial, since its node ran out of memory: starting Tune again")
            watch.lost_all("its node ran out of memory, and Ray ended it. Lower concurrency or raise memory_gb")
            lives += 1


def _resources() -> dict[str, float]:
    import ray

    found: dict[str, float] = ray.cluster_resources()
    return found


def _decided(journal: Journal) -> dict[str, Value] | None:
    """How trials of this sweep sample, if it has begun."""
    return next((event["sampling"] for event in journal.events if event["type"] == "start"), None)


def _check_same(journal: Journal, fingerprint: str) -> None:
    before = next((event["graph_sha256"] for event in journal.events if event["type"] == "start"), fingerprint)
    if before != fingerprint:
        raise InvalidInput(
            f"{journal.path}: the graph {journal.spec.base.data.name} is not the one this sweep began with. Bring that "
            "one back, or begin a new sweep with another --out."
        )


def _tracker(journal: Journal) -> Tracker | None:
    """Follows the journal for MLflow, from its beginning; None if the spec does not ask for it."""
    if not journal.spec.base.run.track:
        return None
    tracker = Tracker()
    tracker.follow(journal.path)
    return tracker


def _settle(journal: Journal) -> None:
    """Close trials that were told to stop just before a kill."""
    for record in list(journal.trials.values()):
        if not record.is_final and record.reports and record.reports[-1].decision == "stop":
            settle_stopped(journal, record)


def _is_over(journal: Journal) -> bool:
    """Whether nothing is left to run: all is tried, or the time is over. More time makes a sweep go on."""
    if journal.out_of_time:
        return True
    if any(not record.is_final or record.state == "ended" for record in journal.trials.values()):
        return False
    last = journal.events[-1] if journal.events else {"type": None}
    return len(journal.trials) >= journal.spec.trials or (last["type"] == "end" and not last["out_of_time"])


def _conclude(journal: Journal, tracker: Tracker | None, stop: StopRequest, trouble: str | None) -> None:
    """Say how the sweep ended, and leave its table, figures and best spec.

    Raises:
        Cancelled: it was asked to end and can be resumed.
        Infrastructure: trials met trouble that may pass; it can be resumed.
        NoTrialSucceeded: there is nothing to choose from.
    """
    sweep, spec, trials, late = journal.path, journal.spec, journal.trials, journal.out_of_time
    unfinished = [record for record in trials.values() if not record.is_final]
    interrupted = not late and (trouble is not None or (stop.is_set() and not _is_over(journal)))
    for record in unfinished if late else ():
        reached = furthest(record)
        value, epoch = (None, 0) if reached is None else (reached.value, reached.epoch)
        journal.record(
            "done", number=record.number, state="ended", value=value, values=[], epoch=epoch, seconds=record.seconds,
            error=f"the sweep's {spec.budget_minutes:g} minutes were over",
        )  # fmt: skip
    write_results(sweep, spec, trials)
    draw_all(sweep / "figures", spec, trials)
    best = best_trial(trials)
    if interrupted:
        journal.record("cancelled", error=trouble)
    elif journal.has_news:
        state = "failed" if best is None else "succeeded"
        number, value = (None, None) if best is None else (best.number, best.last_value)
        journal.record("end", state=state, best=number, value=value, out_of_time=late)
    if tracker is not None:
        tracker.finish(TRACKER_SECONDS)
    finished = sum(record.is_final for record in trials.values())
    done = f"{finished} of {spec.trials} trials done; the same command goes on"
    if trouble is not None and interrupted:
        raise Infrastructure(f"{trouble}\n{done}")
    if interrupted:
        raise Cancelled(f"stopped on request with {done}")
    if best is None:
        _refuse(journal, late)


def _refuse(journal: Journal, late: bool) -> NoReturn:
    """Raise what says why nothing can be chosen."""
    errors = [record.error for record in journal.trials.values() if record.state == "failed" and record.error]
    if late and not errors:
        raise NoTrialSucceeded(
            f"the sweep's {journal.spec.budget_minutes:g} minutes were over before a trial reported. Raise "
            "budget_minutes: the same command goes on."
        )
    raise NoTrialSucceeded(f"no trial of {len(journal.trials)} succeeded. The first said: {(errors or ['nothing'])[0]}")


def _log_to(file: Path) -> None:
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


if __name__ == "__main__":
    main(Path(sys.argv[1]), work)
