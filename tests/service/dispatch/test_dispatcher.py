"""Jobs from the queue to their end, with real processes of the stand-in trainer."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from service.dispatch.dispatcher import RESWEEP_SECONDS, SWEEP_SECONDS, Dispatcher
from service.dispatch.local import LocalRunner
from service.dispatch.orders import Orders
from service.dispatch.place import place
from service.store.errors import Unavailable
from service.store.records import Claim
from tests.service.dispatch.conftest import curve, ended, events_of, processes_of, running, submit, until
from tests.service.dispatch.standin_trainer import losses


def states(store, job_id):
    return [event.data["state"] for event in events_of(store, job_id) if event.type == "state"]


def test_many_jobs_each_succeed_once_with_their_own_curve(dispatching, store):
    jobs = [submit(store, epochs=15, seed=seed) for seed in range(8)]
    dispatching()
    for seed, job in enumerate(jobs):
        done = ended(store, job.id)
        assert (done.state, done.attempt, done.failure_kind) == ("succeeded", 1, None)
        assert curve(store, job.id) == losses(seed, 15)
        assert states(store, job.id) == ["queued", "running", "succeeded"]
        assert done.result is not None
        assert done.result["metrics"]["train"]["loss"] == losses(seed, 15)[-1]
        assert (done.result["figures"], done.result["embeddings"]) == (["loss.png"], False)
        assert (done.progress["phase"], done.progress["epoch"], done.progress["share"]) == ("done", 15, 1.0)
        assert done.metrics["loss"] == losses(seed, 15)[-1]


def test_no_more_run_at_a_time_than_there_are_slots(dispatching, store, settings):
    jobs = [submit(store, epochs=6, seconds=0.05) for _ in range(6)]
    dispatching(settings=settings.model_copy(update={"concurrency": 2}))
    most = 0
    while any(store.jobs.get(job.id).state in ("queued", "running") for job in jobs):
        found = [job for job in jobs if store.jobs.get(job.id).state == "running"]
        most = max(most, len(found))
    assert most == 2


def test_no_more_run_at_a_time_than_memory_allows(dispatching, store):
    jobs = [submit(store, epochs=6, seconds=0.05, job={"memory_bytes": 5 * 10**9}) for _ in range(3)]
    dispatching()  # of 8 GB
    while any(store.jobs.get(job.id).state in ("queued", "running") for job in jobs):
        assert sum(store.jobs.get(job.id).state == "running" for job in jobs) <= 1
    assert [ended(store, job.id).state for job in jobs] == ["succeeded"] * 3


def test_higher_priority_goes_first(dispatching, store, settings):
    low = submit(store, epochs=2, job={"priority": -5})
    high = submit(store, epochs=2, job={"priority": 5})
    dispatching(settings=settings.model_copy(update={"concurrency": 1}))
    assert ended(store, high.id).started < ended(store, low.id).started


@pytest.mark.parametrize(
    "number, retries", [(signal.SIGKILL, 3), (signal.SIGSEGV, 1), (signal.SIGTERM, 1)], ids=["kill", "segv", "term"]
)
def test_a_killed_trainer_resumes_and_the_curve_is_that_of_an_uninterrupted_run(dispatching, store, number, retries):
    job = submit(store, epochs=20, seed=5, signal=int(number), at=8, attempts=retries)
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", retries + 1, retries)
    assert curve(store, job.id) == losses(5, 20)
    types = [event.type for event in events_of(store, job.id)]
    assert (types.count("start"), types.count("resume"), types.count("rewind")) == (1, retries, 0)
    assert types.count("epoch") == 20


def test_retries_come_to_an_end(dispatching, store, settings):
    job = submit(store, epochs=5, exit=5, message="no route to host")
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind, done.infra_retries) == ("failed", "infra", settings.infra_retries)
    assert done.attempt == settings.infra_retries + 1
    assert done.failure_message.startswith("no route to host")


def test_invalid_fails_at_once_with_its_own_words(dispatching, store):
    job = submit(store, exit=3, message="objective.temperature: lower it")
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind, done.attempt) == ("failed", "invalid", 1)
    assert done.failure_message == "objective.temperature: lower it"


def test_out_of_memory_goes_on_with_a_smaller_plan_and_tells_the_new_numbers(dispatching, store):
    job = submit(store, epochs=12, seed=1, exit=4, at=5, attempts=1)
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.oom_retries, done.infra_retries) == ("succeeded", 1, 0)
    assert curve(store, job.id) == losses(1, 12, shrunk_from=4, shrunk=1)  # the checkpoint was of epoch 3
    rewinds = [event for event in events_of(store, job.id) if event.type == "rewind"]
    assert [event.data for event in rewinds] == [{"epoch": 3}]


def test_memory_beyond_the_limit_is_an_oom_not_the_end_of_the_machine(dispatching, store, settings):
    job = submit(store, epochs=4, eat=3_000, job={"memory_bytes": 100_000_000})
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind, done.oom_retries) == ("failed", "oom", settings.oom_retries)


def test_cancel_ends_a_run_after_a_checkpoint(dispatching, store, settings):
    job = submit(store, epochs=10_000, seconds=0.02)
    dispatching()
    running(store, job.id, 2)
    store.jobs.cancel(job.id)
    done = ended(store, job.id)
    assert (done.state, done.failure_kind, done.attempt) == ("cancelled", None, 1)
    last = [event for event in events_of(store, job.id) if event.type == "cancelled"]
    assert len(last) == 1
    assert not processes_of(settings.home)


def test_cancel_ends_a_run_that_does_not_listen_and_all_its_family(dispatching, store, settings):
    job = submit(store, epochs=10_000, seconds=0.02, deaf=True, family=True)
    quick = settings.model_copy(update={"stop_grace_seconds": 1.0})
    dispatching(settings=quick)
    running(store, job.id, 3)
    assert len(processes_of(settings.home)) == 4
    store.jobs.cancel(job.id)
    assert ended(store, job.id).state == "cancelled"
    assert not processes_of(settings.home)


def test_success_in_the_last_moment_stays_success(dispatching, store):
    job = submit(store, epochs=8, seconds=0.05, deaf=True)
    dispatching()
    running(store, job.id, 7)
    store.jobs.cancel(job.id)
    assert ended(store, job.id).state == "succeeded"


def test_a_deadline_ends_the_run(dispatching, store):
    job = submit(store, epochs=10_000, seconds=0.02, job={"deadline": time.time() + 2})
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind) == ("failed", "deadline")
    assert "deadline" in done.failure_message
    assert done.progress["epoch"] > 0


def test_a_job_whose_turn_comes_after_its_deadline_is_not_started(dispatching, store, settings):
    job = submit(store, job={"deadline": time.time() - 1})
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind) == ("failed", "deadline")
    assert not settings.run_directory(job.id).exists()


def test_two_dispatchers_share_the_queue_and_run_nothing_twice(dispatching, store):
    jobs = [submit(store, epochs=10, seed=seed) for seed in range(12)]
    dispatching(), dispatching()
    for seed, job in enumerate(jobs):
        done = ended(store, job.id)
        assert (done.state, done.attempt) == ("succeeded", 1)
        assert curve(store, job.id) == losses(seed, 10)


def test_a_dispatcher_that_was_asleep_is_fenced_and_the_run_goes_on(store, settings, orders):
    """The first stalls after starting the job; the second takes it over, and the first notices when it wakes up."""
    quick = settings.model_copy(update={"lease_seconds": 0.4})
    first = Dispatcher(quick, store, LocalRunner(), orders=orders)
    second = Dispatcher(quick, store, LocalRunner(), orders=orders)
    job = submit(store, epochs=30, seed=2, seconds=0.1)
    until(lambda: first.step() or first.cares)
    time.sleep(0.6)
    until(lambda: second.step() or second.cares)
    assert store.jobs.get(job.id).lease_owner == second.owner
    first.step()
    assert not first.cares
    assert second.cares
    done = until(lambda: second.step() or first.step() or ((found := store.jobs.get(job.id)).is_terminal and found))
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", 1, 0)
    assert curve(store, job.id) == losses(2, 30)


def test_a_process_whose_reference_could_not_be_recorded_is_killed_by_the_fenced_one(store, settings, orders):
    dispatcher = Dispatcher(settings, store, LocalRunner(), orders=orders)
    job = submit(store, epochs=1_000)
    real = store.claims.record

    # Fenced between start and recording: another dispatcher holds the job from there on.
    def steal(claim, *arguments, **updates):
        if (updates.get("runner") or {}).get("pid"):
            store.claims.release(claim)
            store.claims.take_over("other", lease_seconds=99, host=dispatcher.host, foreign_after=0)
        return real(claim, *arguments, **updates)

    store.claims.record = steal
    dispatcher.step()
    assert not dispatcher.cares
    until(lambda: not processes_of(settings.home), 10)
    assert store.jobs.get(job.id).state == "running"


def test_a_stopped_service_queues_its_runs_again_without_counting_and_goes_on_later(
    dispatching, store, settings, orders
):
    job = submit(store, epochs=40, seed=4, seconds=0.05)
    stop = threading.Event()
    dispatcher = Dispatcher(settings, store, LocalRunner(), orders=orders)
    thread = threading.Thread(target=dispatcher.run, args=[stop])
    thread.start()
    running(store, job.id, 2)
    stop.set()
    thread.join(20)
    waiting = store.jobs.get(job.id)
    assert (waiting.state, waiting.infra_retries, waiting.lease_owner) == ("queued", 0, None)
    assert not processes_of(settings.home)
    assert not store.dispatchers.alive(1_000)
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", 2, 0)
    assert curve(store, job.id) == losses(4, 40)
    reasons = [event.data.get("reason") for event in events_of(store, job.id) if event.type == "state"]
    assert "service stopped" in reasons


def test_an_outage_of_the_database_loses_nothing(dispatching, store, monkeypatch):
    """Every call of the store fails for two seconds, some after they have done their work: nobody knows which."""
    job = submit(store, epochs=60, seed=9, seconds=0.05)
    dispatching()
    running(store, job.id, 5)
    away = [True]

    def broken(real, afterwards):
        def call(*arguments, **named):
            if not away[0]:
                return real(*arguments, **named)
            if afterwards:
                real(*arguments, **named)
            raise Unavailable("connection lost")

        return call

    for name in ("held", "renew_all", "take_over", "claim", "finish", "requeue"):
        monkeypatch.setattr(store.claims, name, broken(getattr(store.claims, name), afterwards=False))
    monkeypatch.setattr(store.claims, "record", broken(store.claims.record, afterwards=True))
    time.sleep(2.0)
    away[0] = False
    done = ended(store, job.id)
    assert (done.state, done.attempt) == ("succeeded", 1)
    assert curve(store, job.id) == losses(9, 60)
    told = [(e.type, e.epoch, e.data.get("name")) for e in events_of(store, job.id) if e.type != "state"]
    assert len(told) == len(set(told))


def test_a_commit_of_which_nobody_knows_is_not_repeated(dispatching, store, monkeypatch):
    """Each third transaction is done, and then the connection breaks before it says so."""
    count = [0]
    for name in ("record", "finish", "claim", "renew_all"):
        real = getattr(store.claims, name)

        def call(*arguments, real=real, **named):
            result = real(*arguments, **named)
            count[0] += 1
            if count[0] % 3 == 0:
                raise Unavailable("connection lost")
            return result

        monkeypatch.setattr(store.claims, name, call)
    job = submit(store, epochs=40, seed=9, seconds=0.02)
    dispatching()
    done = ended(store, job.id)
    assert done.state == "succeeded"
    assert curve(store, job.id) == losses(9, 40)
    told = [(e.type, e.epoch, e.data.get("name")) for e in events_of(store, job.id) if e.type != "state"]
    assert len(told) == len(set(told))


def test_trouble_with_one_job_does_not_touch_the_others(dispatching, store, monkeypatch):
    bad = submit(store, epochs=50, seconds=0.05)
    good = [submit(store, epochs=20, seed=seed) for seed in range(3)]
    real = Orders.write_spec

    def write_spec(self, job):
        if job.id == bad.id:
            raise ZeroDivisionError("a fault in the code")
        real(self, job)

    monkeypatch.setattr(Orders, "write_spec", write_spec)
    monkeypatch.setattr("service.dispatch.dispatcher.PATIENCE", 2)
    dispatching()
    for seed, job in enumerate(good):
        assert ended(store, job.id).state == "succeeded"
        assert curve(store, job.id) == losses(seed, 20)
    done = ended(store, bad.id)
    assert (done.state, done.failure_kind) == ("failed", "infra")


def test_a_full_disk_fails_the_job_and_the_service_lives(dispatching, store, settings, small_disk):
    job = submit(store, epochs=20, fill=True)
    settings.runs.mkdir(parents=True)
    (settings.runs / job.id).symlink_to(small_disk)
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind) == ("failed", "infra")
    assert "disk is full" in done.failure_message
    fine = submit(store, epochs=5)
    assert ended(store, fine.id).state == "succeeded"


def test_a_job_that_can_never_be_started_says_why_hinders_no_other_and_ends_at_its_deadline(
    dispatching, store, settings
):
    stuck = submit(store, epochs=3, job={"deadline": time.time() + 6, "priority": 5})
    others = [submit(store, epochs=3, seed=seed) for seed in range(3)]
    settings.jobs.mkdir(parents=True)
    (settings.jobs / stuck.id).write_text("in the way")
    dispatching()
    assert [ended(store, job.id).state for job in others] == ["succeeded"] * 3
    done = ended(store, stuck.id)
    assert (done.state, done.failure_kind, done.infra_retries) == ("failed", "deadline", 0)
    reasons = [event.data.get("reason", "") for event in events_of(store, stuck.id)]
    assert any("cannot be started" in reason for reason in reasons)


def test_a_machine_that_can_start_nothing_for_a_while_spends_no_job_s_retries(store, settings, orders):
    class Exhausted(LocalRunner):
        starts, broken = 0, True

        def start(self, order):
            self.starts += 1
            if self.broken:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return super().start(order)

    runner = Exhausted()
    dispatcher = Dispatcher(settings, store, runner, orders=orders)
    jobs = [submit(store, epochs=3, seed=seed) for seed in range(12)]
    dispatcher.step()
    assert runner.starts == 1  # the others were not even claimed
    until(lambda: dispatcher.step() or runner.starts >= 4)
    runner.broken = False
    until(lambda: dispatcher.step() or all(store.jobs.get(job.id).is_terminal for job in jobs))
    for seed, job in enumerate(jobs):
        done = store.jobs.get(job.id)
        assert (done.state, done.infra_retries, done.failure_kind) == ("succeeded", 0, None)
        assert curve(store, job.id) == losses(seed, 3)


def test_nothing_is_claimed_while_the_disk_is_nearly_full(store, settings, orders, caplog):
    full = settings.model_copy(update={"min_free_bytes": 10**18})
    job = submit(store, epochs=3)
    dispatcher = Dispatcher(full, store, LocalRunner(), orders=orders)
    for _ in range(3):
        dispatcher.step()
    assert store.jobs.get(job.id).attempt == 0
    assert caplog.text.count("no job is started") == 1


def test_an_error_of_any_kind_while_recording_loses_no_event(dispatching, store, monkeypatch):
    real, count = store.claims.record, [0]

    def record(claim, events=(), **updates):
        count[0] += bool(events)
        if events and count[0] % 2:
            raise ZeroDivisionError("a fault in the code")
        return real(claim, events, **updates)

    monkeypatch.setattr(store.claims, "record", record)
    job = submit(store, epochs=12, seed=3)
    dispatching()
    assert ended(store, job.id).state == "succeeded"
    assert curve(store, job.id) == losses(3, 12)


def test_leases_are_kept_while_one_job_takes_its_time(dispatching, store, settings, monkeypatch):
    """The first dispatcher hangs for several leases over one job; the second gets nothing of it."""
    quick = settings.model_copy(update={"lease_seconds": 1.0, "concurrency": 2})
    jobs = [submit(store, epochs=60, seed=seed, seconds=0.05) for seed in range(2)]
    first = dispatching(settings=quick)
    before = [running(store, job.id, 2) for job in jobs]
    real = LocalRunner.poll
    monkeypatch.setattr(LocalRunner, "poll", lambda *given: time.sleep(2.5) or real(*given))
    dispatching(settings=quick)
    time.sleep(4)
    for job, then in zip(jobs, before, strict=True):
        now = store.jobs.get(job.id)
        assert (now.lease_owner, now.attempt) == (first.owner, 1)
        assert now.lease_expires > then.lease_expires
    monkeypatch.setattr(LocalRunner, "poll", real)
    for seed, job in enumerate(jobs):
        assert ended(store, job.id).attempt == 1
        assert curve(store, job.id) == losses(seed, 60)


def test_the_mlflow_run_and_the_trackers_trouble_are_told(dispatching, store, settings):
    job = submit(store, epochs=100, seconds=0.03, tracked=True)
    dispatching()
    until(lambda: store.jobs.get(job.id).mlflow_run_id == "abc123")
    note = settings.run_directory(job.id) / "tracking.json"
    note.write_text(note.read_text().replace("}", ', "error": "no answer", "status": "FINISHED"}'))
    done = ended(store, job.id)
    assert (done.state, done.tracker_error) == ("succeeded", "no answer")


def test_events_of_a_claim_that_was_never_recorded_are_those_of_the_next_attempt(store, settings, orders):
    """A claim whose answer was lost: the dispatcher finds that it holds the job, and looks for a process."""
    dispatcher = Dispatcher(settings, store, LocalRunner(), orders=orders)
    job = submit(store, epochs=5)
    assert store.claims.claim(dispatcher.owner, kinds=["train"], lease_seconds=60) is not None
    done = until(lambda: dispatcher.step() or ((found := store.jobs.get(job.id)).is_terminal and found))
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", 2, 1)


def test_a_job_that_was_taken_away_is_left_alone(store, settings, orders):
    dispatcher = Dispatcher(settings, store, LocalRunner(), orders=orders)
    job = submit(store, epochs=1_000)
    until(lambda: dispatcher.step() or store.jobs.get(job.id).progress.get("epoch"))
    (care,) = dispatcher.cares.values()
    store.claims.finish(Claim.on(care.job), "cancelled")
    store.jobs.delete(job.id)
    dispatcher.step()
    assert not dispatcher.cares
    until(lambda: not processes_of(settings.home), 10)  # nobody else would end it


def test_a_process_of_an_attempt_that_others_gave_up_is_ended_by_whoever_wakes_up_with_it(store, settings, orders):
    """A machine slept so long that another took the job over, found nothing, and has begun the next attempt."""
    dispatcher = Dispatcher(settings, store, LocalRunner(), orders=orders)
    job = submit(store, epochs=1_000, seconds=0.05)
    until(lambda: dispatcher.step() or store.jobs.get(job.id).progress.get("epoch"))
    (care,) = dispatcher.cares.values()
    store.claims.requeue(Claim.on(care.job), delay=0, reason="gone", infra_retries=1, oom_retries=0)
    assert store.claims.claim("other", kinds=["train"], lease_seconds=60).attempt == 2
    dispatcher.step()
    assert not dispatcher.cares
    until(lambda: not processes_of(settings.home), 10)


def test_jobs_of_an_earlier_boot_of_this_machine_are_not_waited_for(store, settings, orders):
    node, _, namespace = place().rsplit("/", 2)
    earlier = f"{node}/00000000/{namespace}"
    job = submit(store, epochs=5, seed=1)
    claim = Claim.on(store.claims.claim("dead", kinds=["train"], lease_seconds=600))
    store.claims.record(claim, runner={"kind": "local", "host": earlier, "pid": 1, "started": 1})
    store.dispatchers.beat("dead", host=earlier, pid=1, info={"started": 1})
    dispatcher = Dispatcher(settings, store, LocalRunner(), orders=orders)
    done = until(lambda: dispatcher.step() or ((found := store.jobs.get(job.id)).is_terminal and found))
    assert (done.state, done.attempt) == ("succeeded", 2)


def test_a_container_of_the_same_name_is_another_place(store, settings, orders):
    node, boot, _ = place().rsplit("/", 2)
    job = submit(store, epochs=5)
    claim = Claim.on(store.claims.claim("other", kinds=["train"], lease_seconds=600))
    store.claims.record(claim, runner={"kind": "local", "host": f"{node}/{boot}/1", "pid": 1, "started": 1})
    store.dispatchers.beat("other", host=f"{node}/{boot}/1", pid=1, info={"started": 1})
    store.claims.release(claim)  # silent, but its process may live
    dispatcher = Dispatcher(settings, store, LocalRunner(), orders=orders)
    dispatcher.step()
    assert (store.jobs.get(job.id).lease_owner, dispatcher.cares) == ("other", {})


def test_a_job_that_uses_more_than_there_is_keeps_no_job_out_that_needs_none(dispatching, store, settings):
    large = submit(store, epochs=100, seconds=0.1, job={"memory_bytes": 10 * settings.memory_bytes})
    dispatching()
    running(store, large.id)
    small = submit(store, epochs=1, job={"memory_bytes": None})
    assert ended(store, small.id).state == "succeeded"
    assert store.jobs.get(large.id).state == "running"
    store.jobs.cancel(large.id)
    ended(store, large.id)


@pytest.mark.parametrize("failing", ["sweep_uploads", "sweep_discarded", "sweep_versions"])
@pytest.mark.parametrize("error", [Unavailable("away"), PermissionError("no")])
def test_a_sweep_that_fails_hinders_no_other_and_is_tried_again_soon(
    store, settings, orders, monkeypatch, failing, error
):
    swept: list[str] = []
    broken = [failing]

    def stand_in(name):
        def sweep(*_):
            swept.append(name)
            if name in broken:
                raise error

        return sweep

    for name in ("sweep_uploads", "sweep_discarded", "sweep_versions"):
        monkeypatch.setattr(f"service.dispatch.dispatcher.{name}", stand_in(name))
    dispatcher = Dispatcher(settings, store, LocalRunner(), orders=orders)
    dispatcher._sweep(0.0)
    assert set(swept) == {"sweep_uploads", "sweep_discarded", "sweep_versions"}
    swept.clear()
    dispatcher._sweep(RESWEEP_SECONDS - 1)
    assert swept == []
    broken.clear()
    dispatcher._sweep(RESWEEP_SECONDS)
    assert set(swept) == {failing}
    swept.clear()
    dispatcher._sweep(SWEEP_SECONDS - 1)
    assert swept == []
    dispatcher._sweep(RESWEEP_SECONDS + SWEEP_SECONDS)
    assert set(swept) == {"sweep_uploads", "sweep_discarded", "sweep_versions"}
