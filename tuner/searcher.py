"""The searcher given to Ray Tune: hands out what the journal still has to run, then what tuner.search suggests.

It remembers only what it gave to this very Tune. A trial is on disk before Tune hears of it, so a kill in between costs
nothing: it waits in the journal, and the next driver hands it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.search import Searcher

from tuner.journal import Journal, TrialRecord
from tuner.search import suggest
from tuner.space import Value, changed


class JournalSearcher(Searcher):
    """For TuneConfig(search_alg=…), alone or in the ConcurrencyLimiter that max_concurrent_trials puts around it.

    A trial's config is {"number": 3, "changes": {"method.temperature": 0.4}}, besides what is in param_space; Tune
    keeps nested dicts, dots in keys, lists and None as they are.

    Args:
        starts: settings to try first.
        sampling: settings that every trial gets, as decided for the whole sweep (tuner.plan).
    """

    def __init__(
        self, journal: Journal, starts: Sequence[dict[str, Value]], sampling: Mapping[str, Value] | None = None
    ):
        super().__init__(metric="value", mode="max")  # which Searcher wants to know, and nobody asks
        self._journal, self._starts, self._sampling = journal, list(starts), dict(sampling or {})
        base = changed(journal.spec.base, self._sampling)
        self._spec = journal.spec.model_copy(update={"base": base})
        self._attempts: dict[int, int] = {}  # trials handed out, and after how many retries
        self._live: set[str] = set()  # what Tune has and may yet come back, by its own names
        self._exhausted = False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's config.

        First what waits in the journal, in order of number: trials left over from before a kill, and those to be tried
        again. Where nothing is left but trials still run, None says so: Tune would not ask again after FINISHED, and
        one of them may die and be tried again.
        """
        trials = self._journal.trials
        record = next((trials[number] for number in sorted(trials) if self._is_to_run(trials[number])), None)
        if record is None and not self._exhausted:
            record = self._new()
        if record is None:
            return None if self._live else Searcher.FINISHED
        self._attempts[record.number] = record.retries
        self._live.add(trial_id)
        return {"number": record.number, "changes": record.changes}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Nothing is learned here: what became of a trial is written to the journal by those who know."""
        self._live.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the journal holds it all. Tune calls this from time to time and is content with no file."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore, see `save`; a sweep goes on with a new searcher on the same journal."""

    def _is_to_run(self, record: TrialRecord) -> bool:
        return not record.is_final and self._attempts.get(record.number) != record.retries

    def _new(self) -> TrialRecord | None:
        suggestion = suggest(self._spec, self._journal.trials, self._starts)
        if suggestion is None:
            self._exhausted = True  # for good, since only further trials could change it
            return None
        changes = self._sampling | suggestion.changes
        self._journal.record("trial", number=suggestion.number, origin=suggestion.origin, changes=changes)
        return self._journal.trials[suggestion.number]
