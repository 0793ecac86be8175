"""The journal is the truth: after any interruption it gives back what was known when its last line was written."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import Infrastructure, InvalidInput
from tuner.config import parse_sweep
from tuner.journal import Journal, TrialRecord, read_sweep

SPEC = parse_sweep({"base": {}})


def opened(path, *, spec=SPEC):
    return closing(Journal.open(path, spec))


def trial(journal, number, **changes):
    journal.record("trial", number=number, origin="search", changes=changes)


def report(journal, number, epoch, value, run=0, decision="continue"):
    journal.record(
        "report", number=number, run=run, epoch=epoch, value=value, figures={}, seconds=1.0, decision=decision
    )


def done(journal, number, state, value, epoch=100):
    journal.record(
        "done", number=number, state=state, value=value, values=[value], epoch=epoch, seconds=2.0, error=None
    )


def test_new_directory_becomes_a_sweep(tmp_path):
    with opened(tmp_path / "a" / "b") as journal:
        assert not journal.has_begun
        assert (journal.trials, journal.events) == ({}, [])
    spec, trials, events = read_sweep(tmp_path / "a" / "b")
    assert (spec, trials, events) == (SPEC, {}, [])


def test_line_is_on_disk_and_known_when_record_returns(tmp_path):
    with opened(tmp_path) as journal:
        event = journal.record("trial", number=0, origin="start", changes={"augment.edge_drop": (0.1, 0.2)})
        (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
        assert json.loads(line) == event == journal.events[0]
        assert journal.trials == {0: TrialRecord(0, "start", {"augment.edge_drop": [0.1, 0.2]})}
        assert read_sweep(tmp_path)[1] == journal.trials, "memory holds what a restart would read, lists for tuples"


def test_states_follow_from_the_lines(tmp_path):
    with opened(tmp_path) as journal:
        journal.record("start", spec_hash="…", objective="val_accuracy", concurrency=2)
        for number in range(6):
            trial(journal, number, x=number)
        for number in range(5):
            journal.record("running", number=number, host="h", pid=number)
        assert [record.state for record in journal.trials.values()] == [*["running"] * 5, "waiting"]
        report(journal, 0, 25, 0.5)
        report(journal, 0, 50, 0.6)
        report(journal, 0, 25, 0.4, run=1)
        done(journal, 0, "finished", 0.55)
        report(journal, 1, 25, 0.2, decision="stop")
        done(journal, 1, "stopped", 0.2, epoch=25)
        journal.record(
            "done", number=2, state="failed", value=None, values=[], epoch=0, seconds=0.0, error="loss is NaN"
        )
        done(journal, 3, "ended", None, epoch=0)
        journal.record("retry", number=4, error="its process died")
        report(journal, 5, 25, 0.3)
        states = {number: record.state for number, record in journal.trials.items()}
        assert states == {0: "finished", 1: "stopped", 2: "failed", 3: "ended", 4: "waiting", 5: "running"}
        first, second, third = (journal.trials[number] for number in range(3))
        assert [journal.trials[number].is_final for number in range(6)] == [True, True, True, True, False, False]
        assert (first.value, first.last_value, first.epoch, first.seconds) == (0.55, 0.55, 100, 2.0)
        assert first.reported(0, 50).value == 0.6
        assert first.reported(1, 25).value == 0.4
        assert first.reported(1, 50) is None
        assert second.reports[-1].decision == "stop"
        assert (third.value, third.last_value, third.error) == (None, None, "loss is NaN")
        assert journal.trials[4].retries == 1
        assert (journal.trials[5].value, journal.trials[5].last_value) == (None, 0.3)


def test_number_that_json_cannot_hold_is_refused_and_leaves_no_line(tmp_path):
    with opened(tmp_path) as journal:
        trial(journal, 0)
        with pytest.raises(ValueError, match="JSON"):
            report(journal, 0, 25, float("nan"))
        report(journal, 0, 25, 0.5)
    assert [event["type"] for event in read_sweep(tmp_path)[2]] == ["trial", "report"]


def test_what_the_time_cut_off_goes_on_when_the_sweep_does(tmp_path):
    with opened(tmp_path) as journal:
        trial(journal, 0)
        report(journal, 0, 25, 0.5)
        done(journal, 0, "ended", 0.5)
        journal.record("end", state="succeeded", best=0, value=0.5, out_of_time=True)
        assert not journal.has_news
        journal.record("resume")
        assert journal.has_news
        assert (journal.trials[0].state, journal.trials[0].value, journal.trials[0].error) == ("waiting", None, None)


@pytest.mark.parametrize("kind", ["resume", "cancelled"])
def test_what_ran_waits_again_after_an_interruption(tmp_path, kind):
    with opened(tmp_path) as journal:
        journal.record("start")
        for number in range(3):
            trial(journal, number)
        journal.record("running", number=0, host="h", pid=1)
        report(journal, 1, 25, 0.5)
        done(journal, 2, "finished", 0.7)
    with opened(tmp_path) as journal:
        assert journal.has_begun
        journal.record(kind)
        assert [record.state for record in journal.trials.values()] == ["waiting", "waiting", "finished"]
        assert journal.trials[1].reported(0, 25).value == 0.5, "what it reported is kept"


class Clock:
    """The time that a journal sees."""

    def __init__(self):
        self.now = 1_000.0

    def monotonic(self):
        return self.now

    def time(self):
        return 1_700_000_000 + self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tuner.journal.time", clock)
    return clock


def test_elapsed_counts_the_time_that_sweeps_were_open(tmp_path, clock):
    with opened(tmp_path) as journal:
        clock.now += 5
        assert journal.record("start")["elapsed"] == 5
    clock.now += 200  # nobody has it open
    with opened(tmp_path) as journal:
        assert journal.elapsed == 5
        clock.now += 2.5
        assert journal.record("resume")["elapsed"] == 7.5
    clock.now += 300
    with opened(tmp_path) as journal:
        assert journal.elapsed == 7.5


def test_the_budget_pays_for_no_start_but_for_all_that_follows_the_first_trial(tmp_path, clock):
    spec = SPEC.model_copy(update={"budget_minutes": 1.0})
    for number, (kind, spent) in enumerate([("start", 0), ("resume", 25), ("resume", 50)]):
        with opened(tmp_path, spec=spec) as journal:
            assert journal.spent == spent
            clock.now += 90  # Ray is started
            assert journal.record(kind)["spent"] == spent
            trial(journal, number)
            clock.now += 30  # a process loads torch
            assert not journal.out_of_time
            assert journal.record("running", number=number, host="h", pid=1)["spent"] == spent
            clock.now += 5
            journal.record("running", number=number, host="h", pid=2)  # tried again: the time goes on
            clock.now += 20
            report(journal, number, 25, 0.5)
            assert journal.spent == spent + 25
            assert journal.out_of_time == (number == 2)
    with opened(tmp_path, spec=spec) as journal:
        assert journal.out_of_time, "nothing is left, however long the next start takes"
        assert journal.elapsed == 3 * (90 + 30 + 25)


def test_a_start_that_never_comes_to_a_trial_uses_the_budget_up_in_the_end(tmp_path, clock):
    with opened(tmp_path, spec=SPEC.model_copy(update={"budget_minutes": 1.0})) as journal:
        journal.record("start")
        clock.now += 659
        assert not journal.out_of_time
        clock.now += 1
        assert journal.out_of_time


def test_a_journal_of_an_older_version_paid_for_everything(tmp_path, clock):
    with opened(tmp_path) as journal:
        clock.now += 50
        journal.record("start")
    file = tmp_path / "events.jsonl"
    event = json.loads(file.read_text())
    del event["spent"]
    file.write_text(json.dumps(event) + "\n")
    with opened(tmp_path) as journal:
        assert journal.spent == 50


@pytest.mark.parametrize("torn", [b"{", b'{"type": "trial", "num', b"\0\0\0", '{"ü'.encode()[:-1], b'{"type": "end"}'])
def test_line_cut_off_by_a_crash_is_removed_before_the_next(tmp_path, torn):
    with opened(tmp_path) as journal:
        trial(journal, 0)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(torn)
    assert set(read_sweep(tmp_path)[1]) == {0}, "a reader passes over it"
    with opened(tmp_path) as journal:
        assert set(journal.trials) == {0}
        trial(journal, 1)
    assert [event["number"] for event in read_sweep(tmp_path)[2]] == [0, 1]


@pytest.mark.parametrize("wrong", ["{]", "[1]", "", "null"])
def test_wrong_line_in_the_middle_is_not_repaired_by_forgetting_the_rest(tmp_path, wrong):
    with opened(tmp_path) as journal:
        for number in range(3):
            trial(journal, number)
    file = tmp_path / "events.jsonl"
    lines = file.read_text().splitlines()
    text = "\n".join([lines[0], wrong, *lines[1:]]) + "\n"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"events.jsonl, line 2: is not an event"):
        Journal.open(tmp_path, SPEC)
    assert file.read_text() == text
    file.write_text("\n".join(lines) + "\n")
    with opened(tmp_path) as journal:  # the lock was given back
        assert set(journal.trials) == {0, 1, 2}


def test_second_opener_is_kept_out_until_the_first_is_gone(tmp_path):
    with opened(tmp_path) as journal:
        with pytest.raises(Infrastructure, match="another process runs a sweep there"):
            Journal.open(tmp_path, SPEC)
        trial(journal, 0)
        assert set(read_sweep(tmp_path)[1]) == {0}, "but it can be read"
    with opened(tmp_path) as journal:
        assert set(journal.trials) == {0}


def test_kill_frees_the_directory_and_loses_no_line(tmp_path, repo_root):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tuner.config import parse_sweep; from tuner.journal import Journal\n"
        "journal = Journal.open(Path(sys.argv[1]), parse_sweep({'base': {}}))\n"
        "journal.record('trial', number=0, origin='start', changes={})\n"
        '(journal.path / "events.jsonl").open("a").write(\'{"type": "tri\')\n'  # killed in the middle of the next line
        "print('ready', flush=True); time.sleep(600)"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=repo_root, stdout=subprocess.PIPE)
    try:
        assert driver.stdout.readline() == b"ready\n"
        with pytest.raises(Infrastructure):
            Journal.open(tmp_path, SPEC)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
    with opened(tmp_path) as journal:
        assert set(journal.trials) == {0}


def test_other_sweep_is_refused_and_the_stored_one_kept(tmp_path):
    with opened(tmp_path):
        pass
    with pytest.raises(InvalidInput, match=r"holds another sweep .*spec.json"):
        Journal.open(tmp_path, parse_sweep({"base": {}, "seed": 1}))
    assert read_sweep(tmp_path)[0] == SPEC


def test_sweep_goes_on_elsewhere_with_other_resources(tmp_path):
    other = parse_sweep({"base": {}, "concurrency": 7, "budget_minutes": 1})
    with opened(tmp_path):
        pass
    with opened(tmp_path, spec=other):
        pass
    assert read_sweep(tmp_path)[0] == other


def test_foreign_directory_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / ".lock").write_text("of another program")
    with pytest.raises(InvalidInput, match=r"holds other files \(thesis.tex\)"):
        Journal.open(tmp_path, SPEC)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "thesis.tex": "precious", ".lock": "of another program",
    }  # fmt: skip
    with pytest.raises(InvalidInput, match="not a sweep directory"):
        read_sweep(tmp_path)


def test_run_directory_is_not_a_sweep(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps(SPEC.base.model_dump(mode="json")))
    with pytest.raises(InvalidInput, match=r"its spec\.json is not that of a sweep"):
        Journal.open(tmp_path, SPEC)


def test_directory_of_a_sweep_killed_before_its_spec_was_written_can_be_used(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".spec.json.4711.tmp").write_text("{")
    with opened(tmp_path) as journal:
        assert not journal.has_begun


def test_file_in_the_way_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Infrastructure, match="cannot write a sweep there"):
        Journal.open(tmp_path / "file", SPEC)


def test_copies_that_ray_makes_are_the_journal_itself_or_its_path(tmp_path):
    with opened(tmp_path) as journal:
        assert copy.deepcopy({"journal": journal})["journal"] is journal
        assert pickle.loads(pickle.dumps(journal)) == tmp_path


VALUES = st.floats(0, 1)


@st.composite
def histories(draw):
    """What a driver may write: trials that start, report, fail, come back, and restarts in between."""
    events, states = [("start", {})], {}
    for _ in range(draw(st.integers(0, 25))):
        alive = sorted(number for number, state in states.items() if state not in ("finished", "stopped", "failed"))
        kind = draw(st.sampled_from(["trial", "resume", *(["running", "report", "done", "retry"] if alive else [])]))
        fields = {}
        if kind == "trial":
            fields = {"number": len(states), "origin": "search", "changes": {"method.temperature": draw(VALUES)}}
            states[len(states)] = "waiting"
        elif kind == "resume":
            states = {number: "waiting" if state == "running" else state for number, state in states.items()}
        else:
            number = draw(st.sampled_from(alive))
            fields = {"number": number}
            states[number] = "waiting" if kind == "retry" else "running"
            if kind == "running":
                fields |= {"host": "h", "pid": 1}
            elif kind == "retry":
                fields |= {"error": "it died"}
            elif kind == "report":
                epoch = draw(st.integers(1, 100))
                fields |= {"run": 0, "epoch": epoch, "value": draw(VALUES), "figures": {"auc": draw(VALUES)}}
                fields |= {"seconds": 1.0, "decision": draw(st.sampled_from(["continue", "stop"]))}
            else:
                states[number] = state = draw(st.sampled_from(["finished", "stopped", "failed"]))
                value = None if state == "failed" else draw(VALUES)
                fields |= {"state": state, "value": value, "values": [], "epoch": 9, "seconds": 1.0, "error": None}
        events.append((kind, fields))
    return events, states


@settings(max_examples=40, deadline=None)
@given(history=histories(), cuts=st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_any_prefix_of_the_file_gives_what_was_known_when_it_ended(tmp_path_factory, history, cuts):
    events, states = history
    path: Path = tmp_path_factory.mktemp("sweep")
    known, ends = [{}], [0]
    with opened(path) as journal:
        for kind, fields in events:
            journal.record(kind, **fields)
            known.append(copy.deepcopy(journal.trials))
            ends.append((path / "events.jsonl").stat().st_size)
        assert {number: record.state for number, record in journal.trials.items()} == states
    whole = (path / "events.jsonl").read_bytes()
    for cut in (len(whole), *(round(cut * len(whole)) for cut in cuts)):
        (path / "events.jsonl").write_bytes(whole[:cut])
        lines = sum(end <= cut for end in ends) - 1  # lines that are complete
        assert read_sweep(path)[1] == known[lines]
        with opened(path) as journal:
            assert journal.trials == known[lines]
        assert (path / "events.jsonl").stat().st_size == ends[lines]
