"""Folders without a job are removed, and none that someone may want."""

from __future__ import annotations

import os
import time

from service.dispatch.orphans import sweep_folders
from service.store.records import new_id
from tests.service.dispatch.conftest import submit


def folder(parent, name, *, age=7_200):
    made = parent / name
    made.mkdir(parents=True)
    (made / "file").write_text("x")
    os.utime(made, (time.time() - age,) * 2)
    return made


def ids(count):
    found = []
    for _ in range(count):
        time.sleep(0.002)  # ids of different milliseconds sort
        found.append(new_id())
    return found


def test_what_a_killed_deletion_left_goes_and_all_else_stays(store, settings):
    first = submit(store)
    time.sleep(0.002)
    left, young = ids(2)
    time.sleep(0.002)
    last = submit(store)
    gone = [folder(settings.runs, left), folder(settings.jobs, left)]
    kept = [
        folder(settings.runs, first.id), folder(settings.jobs, last.id), folder(settings.runs, young, age=60),
        folder(settings.runs, "cora-0123456789"),
    ]  # fmt: skip
    assert sweep_folders(settings, store) == gone
    assert not any(one.exists() for one in gone)
    assert all((one / "file").exists() for one in kept)
    assert sweep_folders(settings, store) == []


def test_a_database_that_knows_nothing_of_older_or_newer_runs_takes_none_away(store, settings):
    (old,) = ids(1)
    time.sleep(0.002)
    one = submit(store)
    (new,) = ids(1)
    kept = [folder(settings.runs, name) for name in (old, one.id, new)]
    assert sweep_folders(settings, store) == []
    store.jobs.cancel(one.id)
    store.jobs.delete(one.id)
    assert sweep_folders(settings, store) == []
    assert all(place.exists() for place in kept)
