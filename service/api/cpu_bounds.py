"""No job may start more threads or processes than there are CPUs: hundreds of them would only take turns, and all that
runs beside them would wait."""

from __future__ import annotations

from collections.abc import Iterator

from service.api.problems import FieldError, not_valid
from service.settings import Settings
from trainer.config import TrainSpec
from tuner.config import SweepSpec
from tuner.space import Choice, Grid, changed

_LOADERS = "sampling.loader_workers"


def check_job_cpus(spec: TrainSpec, settings: Settings) -> None:
    """Raises Problem 422, with the fields to lower and the bound."""
    run = spec.run
    wanted = {
        "run.workers": run.workers,
        "run.threads": run.workers * (run.threads or 1),
        _LOADERS: run.workers * spec.sampling.loader_workers,
    }
    _check(wanted, settings, "" if run.workers == 1 else f"; {run.workers} workers have them")


def check_sweep_cpus(spec: SweepSpec, settings: Settings) -> None:
    """The same for a sweep. A cluster starts as many trials side by side as it has CPUs, whatever was asked for."""
    cpus, together = spec.resources.cpus, 1 if settings.runner == "ray" else spec.concurrency or 1
    loaders = max(trial.sampling.loader_workers for trial in _trials(spec))
    wanted = {"resources.cpus": cpus, "concurrency": cpus * together, f"base.{_LOADERS}": together * loaders}
    _check(wanted, settings, "" if together == 1 else f"; {together} trials at a time have them")


def _trials(spec: SweepSpec) -> Iterator[TrainSpec]:
    """The base, and what becomes of it with each value that has a say in the number of processes."""
    yield spec.base
    for path in ("sampling", _LOADERS):
        dimension = spec.dimensions().get(path)
        if dimension is not None:
            for value in dimension.values if isinstance(dimension, Choice | Grid) else (dimension.high,):
                yield changed(spec.base, {path: value})
    for start in spec.starts or ():
        yield changed(spec.base, start)


def _check(wanted: dict[str, int], settings: Settings, more: str = "") -> None:
    most = settings.job_cpus
    if most is None:
        return
    why = f"more than the {most} CPU{'s' * (most > 1)} that a job may use here (NML_CPU_LIMIT); ask for fewer{more}"
    found = [FieldError(field, f"{count:,} are {why}") for field, count in wanted.items() if count > most]
    if found:
        raise not_valid(found)
