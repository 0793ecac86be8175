"""Brings MLflow up to date with the journal of a run, or with those of a sweep and its trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trainer.tracking.mlflow_run import MlflowRun, Server, State, is_transient
from trainer.tracking.source import Description, Ending, RunSource, Source, read_json
from trainer.tracking.sweep import SweepSource

Warn = Callable[[BaseException], None]


class RunReport:
    """One MLflow run and the source it is fed from.

    Args:
        warn: gets errors that concern only part of what is told.
    """

    def __init__(self, server: Server, source: Source, warn: Warn, parent: RunReport | None = None):
        self.run: MlflowRun | None = None
        self._server, self._source, self._warn, self._parent = server, source, warn, parent
        self._told: Description | None = None

    @property
    def experiment(self) -> str | None:
        return self._source.description.experiment if self._source.description else None

    def catch_up(self, fallback: Ending | None = None, *, closing: bool) -> None:
        """Send what is new, and if `closing` how it ended.

        Args:
            fallback: how it ended, unless the journal has it as finished or failed.
        """
        more = True
        while more:
            if not self._source.points or self._source.description is None:
                more = self._source.advance()
            self._describe()
            if self.run is not None:
                self.run.log(self._source.points)
                self._source.points.clear()
            elif self._source.points:
                break  # it cannot be told before it has begun
        if closing:
            self._close(fallback)

    def _describe(self) -> None:
        """Again after each change: a run that is resumed with another plan has other parameters."""
        about = self._source.description
        if about is not None and about != self._told:
            parent = self._parent.run.run_id if self._parent and self._parent.run else None
            self.run = MlflowRun.opened(self._server, self._source.directory, about, parent=parent)
            self._told = about

    def _close(self, fallback: Ending | None) -> None:
        found, source = self._source.ending, self._source
        ending = found if found is not None and found.final else fallback or found or source.interrupted
        self.run = self.run or MlflowRun.found(self._server, source.directory)
        if self.run is None:
            return
        try:
            self.run.upload(source.files())
        except Exception as error:
            if is_transient(error):
                raise
            self._warn(error)  # say, a bucket without its driver: the run itself can still be closed
        self.run.end(replace(ending, tags={**source.interrupted.tags, **ending.tags}))


class SweepReport(RunReport):
    """The MLflow run of a sweep, and those of its trials until each is told in full."""

    def __init__(self, server: Server, source: SweepSource, warn: Warn):
        super().__init__(server, source, warn)
        self._sweep = source
        self._trials: dict[int, RunReport] = {}

    def catch_up(self, fallback: Ending | None = None, *, closing: bool) -> None:
        """The sweep's run is closed after those of its trials: once it is, everything was sent."""
        super().catch_up(closing=False)
        for number, trial in list(self._sweep.trials.items()):
            if self.run is None or not trial.has_begun:
                continue
            over = closing or trial.ending is not None
            try:
                if not _is_told(trial):
                    report = self._trials.get(number) or RunReport(self._server, trial, self._warn, parent=self)
                    self._trials[number] = report
                    report.catch_up(fallback, closing=over)
            except Exception as error:
                if is_transient(error):
                    raise
                self._warn(error)
                over = True
            if over:
                del self._sweep.trials[number]
                self._trials.pop(number, None)
        if closing:
            self._close(fallback)


def _is_told(trial: Source) -> bool:
    """Whether an earlier process has sent everything."""
    ending = trial.ending
    return ending is not None and ending.final and State(trial.directory).get("status") == ending.status


def report_on(directory: Path, server: Server, warn: Warn) -> RunReport:
    """For a run directory or a sweep's."""
    if "base" in read_json(directory / "spec.json"):
        return SweepReport(server, SweepSource(directory), warn)
    return RunReport(server, RunSource(directory), warn)
