"""Dispatchers killed with -9, at every step where that could hurt and at random: the next one takes up the thread."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from service.dispatch.procfs import command_of
from service.store.records import TERMINAL
from tests.service.dispatch import dispatcher_process, standin_trainer
from tests.service.dispatch.conftest import curve, ended, events_of, processes_of, running, submit, until
from tests.service.dispatch.standin_trainer import losses
from trainer.files.journal import read_journal

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("step", dispatcher_process.STEPS)
def test_killed_at_that_step_the_job_still_ends_once_with_its_curve(process, store, settings, step):
    job = submit(store, epochs=30, seed=6, seconds=0.05)
    first = process(step)
    assert first.wait(120) == -signal.SIGKILL
    before = store.jobs.get(job.id)
    process()
    done = ended(store, job.id)
    assert done.state == "succeeded"
    assert curve(store, job.id) == losses(6, 30)
    types = [event.type for event in events_of(store, job.id)]
    assert types.count("epoch") == 30
    survived = step in ("started", "recorded", "relaying", "settling", "finishing")
    assert done.attempt == (1 if survived else 2), before
    assert not processes_of(settings.home)


@pytest.mark.slow
def test_a_killed_dispatcher_is_followed_by_one_that_goes_on_with_the_same_process(process, store, settings, go):
    job = submit(store, epochs=80, seed=3, at=3, until=go)
    first = process(lease=600.0)
    running(store, job.id, 3)
    before = store.jobs.get(job.id)
    first.kill()
    first.wait()
    assert len(processes_of(settings.home)) == 2
    process(lease=600.0)  # the lease of the dead one is not waited for: it is certain that it is dead
    until(lambda: store.jobs.get(job.id).lease_owner != before.lease_owner)
    go.touch()
    done = ended(store, job.id)
    assert (done.state, done.attempt, done.runner) == ("succeeded", 1, before.runner)
    assert curve(store, job.id) == losses(3, 80)


@pytest.mark.slow
def test_a_trainer_that_ended_while_no_dispatcher_was_there_is_not_run_again(process, store, settings, go):
    job = submit(store, epochs=20, seed=3, until=go)
    first = process()
    running(store, job.id, 2)
    first.kill()
    first.wait()
    go.touch()
    until(lambda: not processes_of(settings.home))
    assert store.jobs.get(job.id).state == "running"
    process()
    done = ended(store, job.id)
    assert (done.state, done.attempt) == ("succeeded", 1)
    assert curve(store, job.id) == losses(3, 20)


@pytest.mark.slow
def test_what_a_killed_shim_leaves_is_ended_before_the_next_attempt(process, store, settings, go):
    job = submit(store, epochs=60, seed=3, family=True, attempts=1, until=go)
    process()
    reference = running(store, job.id, 2).runner
    until(lambda: len(processes_of(settings.home)) == 4)  # shim, trainer and two that it leaves behind
    os.kill(reference["pid"], signal.SIGKILL)
    done = ended(store, job.id)
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", 2, 1)
    assert curve(store, job.id) == losses(3, 60)
    assert not processes_of(settings.home)


@pytest.mark.slow
def test_wish_to_cancel_is_carried_out_by_the_next_dispatcher(process, store, settings):
    job = submit(store, epochs=10_000, seconds=0.05)
    first = process()
    running(store, job.id, 2)
    first.kill()
    first.wait()
    store.jobs.cancel(job.id)
    process()
    assert ended(store, job.id).state == "cancelled"
    assert not processes_of(settings.home)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_kills_of_everything(process, store, settings, seed):
    """Dispatchers and the processes of jobs, killed at random; every job ends once, with its own curve."""
    chance = random.Random(seed)
    jobs = [submit(store, epochs=chance.randint(5, 60), seed=number, seconds=0.04) for number in range(8)]
    # A lease that no slow dispatcher loses; what a dead one held goes to whoever is started next.
    start = partial(process, lease=15.0)
    alive = [start(), start()]
    end = time.monotonic() + 25
    while time.monotonic() < end and any(store.jobs.get(job.id).state not in TERMINAL for job in jobs):
        time.sleep(chance.uniform(0.05, 0.6))
        targets = processes_of(settings.home)
        if chance.random() < 0.6 and targets:
            try:
                os.kill(chance.choice(targets), signal.SIGKILL)
            except ProcessLookupError:
                continue
        else:
            victim = alive.pop(chance.randrange(len(alive)))
            victim.kill()
            victim.wait()
            alive.append(start())
    for number, job in enumerate(jobs):
        done = ended(store, job.id)
        states = [event.data["state"] for event in events_of(store, job.id) if event.type == "state"]
        assert [state in TERMINAL for state in states].count(True) == 1
        if done.state == "succeeded":
            assert curve(store, job.id) == losses(number, job.spec["optimiser"]["epochs"])
            told = [event.data for event in events_of(store, job.id) if event.type != "state"]
            assert told == read_journal(settings.run_directory(job.id) / "events.jsonl")
        else:
            assert (done.state, done.failure_kind) == ("failed", "infra")
            assert done.infra_retries == settings.infra_retries
    assert not [process for process in processes_of(settings.home) if standin_trainer.__file__ in command_of(process)]
    until(lambda: not processes_of(settings.home))  # a shim that came too late to start anything goes by itself
