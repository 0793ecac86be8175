"""Ray Tune gets what the journal still has to run, then what the search suggests, and forgetting it costs nothing."""

from __future__ import annotations

import pickle
from contextlib import closing

from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search import ConcurrencyLimiter, Searcher
from ray.tune.search.search_generator import SearchGenerator

from tuner.config import parse_sweep
from tuner.journal import Journal, read_sweep
from tuner.searcher import JournalSearcher

SPACE = {
    "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
    "augment.edge_drop": {"kind": "choice", "values": [[0.1, 0.2], [0.3, 0.3]]},
    "sampling.num_neighbors": {"kind": "choice", "values": [None]},
    "method.reg": {"kind": "choice", "values": [{"coefficient": 2, "scale": "one"}]},
}


def sweep(**fields):
    return parse_sweep({"base": {}, "space": SPACE, "trials": 5, **fields})


def opened(path, **fields):
    return closing(Journal.open(path, sweep(**fields)))


def finish(journal, number, state="finished"):
    journal.record(
        "done", number=number, state=state, value=0.5, values=[0.5], epoch=9, seconds=1.0, error=None
    )  # fmt: skip


def numbers(searcher, count, name="ray"):
    return [searcher.suggest(f"{name}-{at}")["number"] for at in range(count)]


def test_trial_is_in_the_journal_when_tune_hears_of_it(tmp_path):
    with opened(tmp_path) as journal:
        searcher = JournalSearcher(journal, [{"method.temperature": 0.25}])
        for at, origin in enumerate(["start", "search"]):
            config = searcher.suggest(f"ray-{at}")
            stored = read_sweep(tmp_path)[1][at]
            assert config == {"number": at, "changes": stored.changes}
            assert (stored.origin, stored.state) == (origin, "waiting")
        assert config["changes"].keys() == SPACE.keys()


def test_what_was_left_over_is_handed_out_first_in_order_and_once(tmp_path):
    with opened(tmp_path) as journal:
        first = JournalSearcher(journal, [])
        configs = [first.suggest(f"old-{at}") for at in range(4)]
        journal.record("running", number=0, host="h", pid=1)
        journal.record("running", number=2, host="h", pid=1)
        finish(journal, 1)
    with opened(tmp_path) as journal:
        journal.record("resume")
        second = JournalSearcher(journal, [])
        again = [second.suggest(f"new-{at}") for at in range(4)]
        assert again[:3] == [configs[0], configs[2], configs[3]]
        assert again[3]["number"] == 4
        assert second.suggest("new-4") is None


def test_tune_is_told_of_the_end_only_when_no_trial_can_come_back(tmp_path):
    with opened(tmp_path, trials=2) as journal:
        searcher = JournalSearcher(journal, [])
        assert numbers(searcher, 2) == [0, 1]
        assert searcher.suggest("ray-2") is None
        finish(journal, 0)
        searcher.on_trial_complete("ray-0")
        assert searcher.suggest("ray-2") is None
        searcher.on_trial_complete("ray-1", error=True)
        journal.record("retry", number=1, error="its process died")
        assert searcher.suggest("ray-2")["number"] == 1
        assert searcher.suggest("ray-3") is None
        searcher.on_trial_complete("ray-2", error=True)
        finish(journal, 1, "failed")
        assert searcher.suggest("ray-3") == Searcher.FINISHED


def test_used_up_grid_ends_the_sweep(tmp_path):
    space = {"augment.edge_drop": SPACE["augment.edge_drop"]}
    with opened(tmp_path, space=space, algorithm="grid") as journal:
        searcher = JournalSearcher(journal, [])
        assert numbers(searcher, 2) == [0, 1]
        for at in range(2):
            finish(journal, at)
            searcher.on_trial_complete(f"ray-{at}")
        assert searcher.suggest("ray-2") == Searcher.FINISHED
        assert len(journal.trials) == 2


def test_limiter_holds_back_what_is_beyond_it_and_writes_nothing_down(tmp_path):
    with opened(tmp_path) as journal:
        limited = ConcurrencyLimiter(JournalSearcher(journal, []), max_concurrent=2)
        assert numbers(limited, 2) == [0, 1]
        assert limited.suggest("ray-2") is None
        assert len(journal.trials) == 2
        finish(journal, 0)
        limited.on_trial_complete("ray-0", {"value": 0.5})
        assert limited.suggest("ray-2")["number"] == 2


def test_searcher_keeps_no_state_in_files_and_can_be_pickled(tmp_path):
    with opened(tmp_path / "sweep") as journal:
        searcher = JournalSearcher(journal, [])
        searcher.suggest("ray-0")
        (tmp_path / "ray").mkdir()
        searcher.save_to_dir(str(tmp_path / "ray"))
        assert list((tmp_path / "ray").iterdir()) == []
        pickle.dumps(searcher)  # Tune does so at the start, and never looks at it again


def test_changes_reach_the_trial_as_they_are(tmp_path):
    """Through Tune's own generator, which merges, flattens and names configs."""
    with opened(tmp_path / "sweep") as journal:
        generator = SearchGenerator(ConcurrencyLimiter(JournalSearcher(journal, [{}]), max_concurrent=5))
        experiment = Experiment("sweep", _train, config={"sweep": "x"}, num_samples=9, storage_path=str(tmp_path))
        generator.add_configurations([experiment])
        trials = [generator.next_trial() for _ in range(3)]
        assert [trial.config for trial in trials] == [
            {"sweep": "x", "number": number, "changes": record.changes} for number, record in journal.trials.items()
        ]
        assert trials[0].config["changes"] == {}
        assert trials[1].config["changes"]["method.reg"] == {"coefficient": 2, "scale": "one"}
        assert trials[1].config["changes"]["sampling.num_neighbors"] is None


def _train(config):
    tune.report({"value": 0.5})


def test_every_trial_gets_what_was_decided_for_the_whole_sweep_and_none_is_tried_twice_for_it(tmp_path):
    decided = {"sampling.negatives": "graph", "sampling.batch_size": None}
    space = {"method.inner_steps": {"kind": "choice", "values": [1, 2]}}
    with opened(tmp_path, space=space, algorithm="random", trials=5) as journal:
        searcher = JournalSearcher(journal, [{"method.inner_steps": 2}], decided)
        given = [searcher.suggest(f"tune-{number}") for number in range(2)]
        assert [trial["changes"] for trial in given] == [
            {**decided, "method.inner_steps": 2}, {**decided, "method.inner_steps": 1},
        ]  # fmt: skip
        assert searcher.suggest("tune-2") is None, "both values are taken"
