"""Whoever follows events.jsonl sees each event once, whatever happens to the trainer that writes it."""

from __future__ import annotations

import json
import os

import pytest

from trainer.config import parse_spec
from trainer.parallel.follow import Follower
from trainer.run.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory.open(tmp_path / "run", parse_spec({}), resume=False)
    yield directory
    directory.close()


def epochs(follower: Follower) -> list[tuple[str, int]]:
    return [(event["type"], event["epoch"]) for event in follower.new_events()]


def test_events_come_once_and_in_order(run):
    follower = Follower(run.events)
    assert epochs(follower) == []
    run.record("start", epoch=0)
    run.record("epoch", epoch=1)
    assert epochs(follower) == [("start", 0), ("epoch", 1)]
    assert epochs(follower) == []
    run.record("epoch", epoch=2)
    assert epochs(follower) == [("epoch", 2)]


def test_a_line_is_given_when_it_is_complete(run):
    follower = Follower(run.events)
    with run.events.open("ab", buffering=0) as file:
        file.write(b'{"type": "epoch", ')
        assert epochs(follower) == []
        file.write(b'"epoch": 1}\n')
        assert epochs(follower) == [("epoch", 1)]


def test_what_was_there_at_the_start_is_not_news_even_after_a_rewind(run):
    for epoch in range(1, 6):
        run.record("epoch", epoch=epoch)
    follower = Follower(run.events)
    run.rewind(3)
    run.record("resume", epoch=3)
    run.record("epoch", epoch=4)
    assert epochs(follower) == [("resume", 3), ("epoch", 4)]


def test_epochs_written_again_after_a_rewind_are_given_again(run):
    follower = Follower(run.events)
    for epoch in range(1, 4):
        run.record("epoch", epoch=epoch)
    assert len(epochs(follower)) == 3
    run.rewind(2)
    assert epochs(follower) == []
    run.record("resume", epoch=2)
    run.record("epoch", epoch=3)
    assert epochs(follower) == [("resume", 2), ("epoch", 3)]


def test_several_rewinds_between_two_looks_lose_nothing(run):
    follower = Follower(run.events)
    for epoch in range(1, 4):
        run.record("epoch", epoch=epoch)
    assert len(epochs(follower)) == 3
    for _ in range(5):  # freed inodes get used again
        run.rewind(2)
        run.record("epoch", epoch=3)
    assert epochs(follower) == [("epoch", 3)]


def test_a_line_cut_off_by_a_crash_does_not_hide_the_next(run):
    follower = Follower(run.events)
    with run.events.open("a") as file:
        file.write('{"type": "epo\n' + json.dumps({"type": "epoch", "epoch": 2}) + "\n")
    assert epochs(follower) == [("epoch", 2)]


def test_a_file_that_is_gone_for_a_moment_is_no_error(run):
    follower = Follower(run.events)
    run.record("epoch", epoch=1)
    assert epochs(follower) == [("epoch", 1)]
    os.rename(run.events, run.path / "aside")
    assert epochs(follower) == []
    os.rename(run.path / "aside", run.events)
    run.record("epoch", epoch=2)
    assert epochs(follower) == [("epoch", 2)]
