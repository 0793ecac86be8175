"""Dispatchers after and beside each other: one sleeps, is stopped, dies or wakes up late, and another goes on."""

from __future__ import annotations

import threading

from service.dispatch.dispatcher import Dispatcher
from service.dispatch.host_id import host_id
from service.dispatch.local import LocalRunner
from service.store.records import Claim
from tests.service.dispatch.conftest import curve, ended, events_of, processes_of, running, submit, until
from tests.service.dispatch.standin_trainer import losses


def test_two_dispatchers_share_the_queue_and_run_nothing_twice(dispatching, store, settings):
    jobs = [submit(store, epochs=10, seed=seed) for seed in range(12)]
    # neither takes the other, slow as it may be, for dead
    patient = settings.model_copy(update={"lease_seconds": 60.0})
    dispatching(settings=patient), dispatching(settings=patient)
    for seed, job in enumerate(jobs):
        done = ended(store, job.id)
        assert (done.state, done.attempt) == ("succeeded", 1)
        assert curve(store, job.id) == losses(seed, 10)


def test_a_dispatcher_that_was_asleep_is_fenced_and_the_run_goes_on(store, settings, commands, go):
    """The first stalls after starting the job; the second takes it over, and the first notices when it wakes up."""
    patient = settings.model_copy(update={"lease_seconds": 60.0})
    first = Dispatcher(patient, store, LocalRunner(), commands=commands)
    second = Dispatcher(patient, store, LocalRunner(), commands=commands)
    job = submit(store, epochs=30, seed=2, until=go)
    until(lambda: first.step() or first.attempts)
    store.claims.release(Claim.on(store.jobs.get(job.id)))  # as if its lease were over
    until(lambda: second.step() or second.attempts)
    assert store.jobs.get(job.id).lease_owner == second.owner
    first.step()
    assert not first.attempts
    assert second.attempts
    go.touch()
    done = until(lambda: second.step() or first.step() or ((found := store.jobs.get(job.id)).is_terminal and found))
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", 1, 0)
    assert curve(store, job.id) == losses(2, 30)


def test_a_process_whose_reference_could_not_be_recorded_is_killed_by_the_fenced_one(store, settings, commands):
    dispatcher = Dispatcher(settings, store, LocalRunner(), commands=commands)
    job = submit(store, epochs=100_000)
    real = store.claims.record

    # Fenced between start and recording: another dispatcher holds the job from there on.
    def steal(claim, *arguments, **updates):
        if (updates.get("runner") or {}).get("pid"):
            store.claims.release(claim)
            store.claims.take_over("other", lease_seconds=99, host=dispatcher.host, foreign_after=0)
        return real(claim, *arguments, **updates)

    store.claims.record = steal
    dispatcher.step()
    assert not dispatcher.attempts
    until(lambda: not processes_of(settings.home))
    assert store.jobs.get(job.id).state == "running"


def test_a_stopped_service_queues_its_runs_again_without_counting_and_goes_on_later(
    dispatching, store, settings, commands, go
):
    job = submit(store, epochs=40, seed=4, until=go)
    stop = threading.Event()
    dispatcher = Dispatcher(settings, store, LocalRunner(), commands=commands)
    thread = threading.Thread(target=dispatcher.run, args=[stop], daemon=True)
    thread.start()
    running(store, job.id, 2)
    stop.set()
    thread.join(120)
    assert not thread.is_alive()
    waiting = store.jobs.get(job.id)
    assert (waiting.state, waiting.infra_retries, waiting.lease_owner) == ("queued", 0, None)
    assert not processes_of(settings.home)
    assert not store.dispatchers.alive(1_000)
    go.touch()
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", 2, 0)
    assert curve(store, job.id) == losses(4, 40)
    reasons = [event.data.get("reason") for event in events_of(store, job.id) if event.type == "state"]
    assert "service stopped" in reasons


def test_events_of_a_claim_that_was_never_recorded_are_those_of_the_next_attempt(store, settings, commands):
    """A claim whose answer was lost: the dispatcher finds that it holds the job, and looks for a process."""
    dispatcher = Dispatcher(settings, store, LocalRunner(), commands=commands)
    job = submit(store, epochs=5)
    assert store.claims.claim(dispatcher.owner, kinds=["train"], lease_seconds=60) is not None
    done = until(lambda: dispatcher.step() or ((found := store.jobs.get(job.id)).is_terminal and found))
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", 2, 1)


def test_a_job_that_was_taken_away_is_left_alone(store, settings, commands):
    dispatcher = Dispatcher(settings, store, LocalRunner(), commands=commands)
    job = submit(store, epochs=100_000)
    until(lambda: dispatcher.step() or store.jobs.get(job.id).progress.get("epoch"))
    (attempt,) = dispatcher.attempts.values()
    store.claims.finish(Claim.on(attempt.job), "cancelled")
    store.jobs.delete(job.id)
    dispatcher.step()
    assert not dispatcher.attempts
    until(lambda: not processes_of(settings.home))  # nobody else would end it


def test_a_process_of_an_attempt_that_others_gave_up_is_ended_by_whoever_wakes_up_with_it(store, settings, commands):
    """A machine slept so long that another took the job over, found nothing, and has begun the next attempt."""
    dispatcher = Dispatcher(settings, store, LocalRunner(), commands=commands)
    job = submit(store, epochs=100_000)
    until(lambda: dispatcher.step() or store.jobs.get(job.id).progress.get("epoch"))
    (attempt,) = dispatcher.attempts.values()
    store.claims.requeue(Claim.on(attempt.job), delay=0, reason="gone", infra_retries=1, oom_retries=0)
    assert store.claims.claim("other", kinds=["train"], lease_seconds=60).attempt == 2
    dispatcher.step()
    assert not dispatcher.attempts
    until(lambda: not processes_of(settings.home))


def test_jobs_of_an_earlier_boot_of_this_machine_are_not_waited_for(store, settings, commands):
    node, _, namespace = host_id().rsplit("/", 2)
    earlier = f"{node}/00000000/{namespace}"
    job = submit(store, epochs=5, seed=1)
    claim = Claim.on(store.claims.claim("dead", kinds=["train"], lease_seconds=600))
    store.claims.record(claim, runner={"kind": "local", "host": earlier, "pid": 1, "started": 1})
    store.dispatchers.beat("dead", host=earlier, pid=1, info={"started": 1})
    dispatcher = Dispatcher(settings, store, LocalRunner(), commands=commands)
    done = until(lambda: dispatcher.step() or ((found := store.jobs.get(job.id)).is_terminal and found))
    assert (done.state, done.attempt) == ("succeeded", 2)


def test_a_container_of_the_same_name_is_another_place(store, settings, commands):
    node, boot, _ = host_id().rsplit("/", 2)
    job = submit(store, epochs=5)
    claim = Claim.on(store.claims.claim("other", kinds=["train"], lease_seconds=600))
    store.claims.record(claim, runner={"kind": "local", "host": f"{node}/{boot}/1", "pid": 1, "started": 1})
    store.dispatchers.beat("other", host=f"{node}/{boot}/1", pid=1, info={"started": 1})
    store.claims.release(claim)  # silent, but its process may live
    dispatcher = Dispatcher(settings, store, LocalRunner(), commands=commands)
    dispatcher.step()
    assert (store.jobs.get(job.id).lease_owner, dispatcher.attempts) == ("other", {})
