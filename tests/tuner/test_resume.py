"""Killed at any moment, the same command goes on, and comes to the same end as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.tuner.held import hold
from tests.tuner.sweeps import SECONDS, count, events, finish, outline, run, small_sweep, start_held, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * SECONDS)]
SPEC = small_sweep(trials=14)  # more than TPE's ten random ones
LAST = 13
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, repo_root) -> list[tuple[Any, ...]]:
    out = tmp_path_factory.mktemp("uninterrupted") / "sweep"
    assert run(SPEC, out, repo_root) == 0
    reference = outline(out)
    assert len(reference) == 14
    assert {trial[4] for trial in reference} == {"finished", "stopped"}, "the scheduler must have something to forget"
    return reference


def driver_of(found: Events) -> int:
    return next(event["pid"] for event in reversed(found) if event["type"] in ("start", "resume"))


def gone(pid: int) -> bool:
    """Whether a process has ended, or does so within seconds; a zombie has: its new parent may never ask for it."""
    try:
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.wait(timeout=120)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def kill_driver(found: Events) -> None:
    os.kill(driver_of(found), signal.SIGKILL)


def kill_all_of_ray(found: Events) -> None:
    """The driver, and raylet, GCS and workers below it, as when a machine loses power."""
    driver = psutil.Process(driver_of(found))
    driver.suspend()  # it notices nothing of what follows
    for process in [*driver.children(recursive=True), driver]:
        with suppress(psutil.NoSuchProcess):  # workers end with their raylet
            process.kill()


def kill_trial_and_driver(found: Events) -> None:
    worker = next(event["pid"] for event in reversed(found) if event["type"] == "running")
    os.kill(driver_of(found), signal.SIGKILL)
    with suppress(ProcessLookupError):  # it ends with the driver
        os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    "kill, moment",
    [
        # in the middle of a trial, between two reports
        (kill_driver, lambda found: count(found, "trial") >= 3 and found[-1]["type"] == "report"),
        # a trial was just told to stop
        (kill_all_of_ray, lambda found: any(event.get("decision") == "stop" for event in found)),
        # among the trials that TPE's model chose, as one is done and the last not yet thought of, or about to begin
        (kill_trial_and_driver, lambda found: count(found, "done") >= LAST),
    ],
    ids=["driver", "whole-ray", "late"],
)
def test_a_killed_sweep_goes_on_to_the_same_trials_reports_and_decisions(
    tmp_path: Path, repo_root: Path, uninterrupted: list[Any], kill: Callable[[Events], None],
    moment: Callable[[Events], bool],
) -> None:  # fmt: skip
    out = tmp_path / "sweep"
    hold(out, LAST, "begin")  # so that something is left to do, however late the kill comes
    process = start_held(SPEC, out, repo_root)
    kill(wait_until(out, moment, process))
    assert finish(process) == 5, "infrastructure: the same command may succeed"
    before = events(out)
    finished = {event["number"] for event in before if event["type"] == "done"}

    assert run(SPEC, out, repo_root) == 0
    after = events(out)
    assert after[: len(before)] == before, "the past was rewritten"
    later = [event["number"] for event in after[len(before) :] if event["type"] == "running"]
    assert not finished & set(later), "a finished trial was run again"
    assert outline(out) == uninterrupted


def test_a_sweep_that_is_asked_to_end_stops_its_trials_and_can_be_resumed(tmp_path, repo_root, uninterrupted):
    out = tmp_path / "sweep"
    hold(out, LAST, "begin")
    process = start_held(SPEC, out, repo_root)
    found = wait_until(out, lambda found: count(found, "done") >= 2, process)
    ray = [driver_of(found), *(child.pid for child in psutil.Process(driver_of(found)).children(recursive=True))]
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 6
    assert events(out)[-1]["type"] == "cancelled"
    assert [pid for pid in ray if not gone(pid)] == [], "Ray's processes outlived the sweep"
    assert run(SPEC, out, repo_root) == 0
    assert outline(out) == uninterrupted


def test_when_the_process_that_wanted_the_sweep_is_killed_its_driver_ends_and_a_resume_waits_for_that(
    tmp_path, repo_root, uninterrupted
):
    out = tmp_path / "sweep"
    hold(out, LAST, "begin")
    process = start_held(SPEC, out, repo_root)
    wait_until(out, lambda found: count(found, "report") >= 5, process)
    process.kill()
    process.communicate()
    assert run(SPEC, out, repo_root) == 0
    assert outline(out) == uninterrupted


def test_a_finished_sweep_has_nothing_left_to_run(tmp_path, repo_root):
    out = tmp_path / "sweep"
    spec = small_sweep(trials=2)
    assert run(spec, out, repo_root) == 0
    before, journal = outline(out), (out / "events.jsonl").read_bytes()
    assert run(spec, out, repo_root) == 0
    assert outline(out) == before
    assert (out / "events.jsonl").read_bytes() == journal
