"""Two dispatchers on one queue: a job is never run twice, also when one of them sleeps through its lease."""

from __future__ import annotations

import signal
import time
from collections import Counter

import psutil
import pytest

from service.store import open_store
from tests.faults.histories import all_events, check_history, curve, small_spec, uninterrupted, wait_all
from tests.faults.services import Service, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(600)]
JOBS, EPOCHS = 3, 300


def test_sleeping_dispatcher_loses_its_jobs_but_not_their_processes(tmp_path):
    home = tmp_path / "home"
    document = small_spec(epochs=EPOCHS)
    reference = uninterrupted(document, tmp_path / "reference")
    api = Service(home, role="api", concurrency=JOBS)
    first, second = (Service(home, role="dispatcher", concurrency=JOBS) for _ in range(2))
    try:
        api.start()
        first.start()
        api.wait_until_ready()
        with api.client() as client:
            ids = [client.submit(document).id for _ in range(JOBS)]
            wait_for(lambda: len(first.trainers()) == JOBS, 120, first.last_words)
            second.start()
            store = open_store(api.settings)
            try:
                wait_for(lambda: len(store.dispatchers.alive(60)) == 2, 120, second.last_words)
                (sleeper,) = first.parts("service.dispatch")
                sleeper.send_signal(signal.SIGSTOP)
                wait_for(lambda: takers(store, ids) and str(sleeper.pid) not in takers(store, ids), 120)
                sleeper.send_signal(signal.SIGCONT)
                once = at_most_one_trainer_each(api, lambda: ended(store, ids))
                assert once
                assert wait_all(client, ids, 300) == dict.fromkeys(ids, "succeeded")
                for job_id in ids:
                    job = store.jobs.get(job_id)
                    assert (job.attempt, job.infra_retries) == (1, 0)  # taken over as it ran, not started again
                    events = all_events(store, job_id)
                    check_history(events, "succeeded")
                    assert curve(events) == reference
            finally:
                store.close()
    finally:
        for service in (first, second, api):
            service.end()


def takers(store, ids) -> set[str]:
    """Process numbers of the dispatchers that hold unfinished jobs."""
    owners = {job.lease_owner for job_id in ids if not (job := store.jobs.get(job_id)).is_terminal}
    pids = {record.id: str(record.pid) for record in store.dispatchers.alive(3_600)}
    return {pids[owner] for owner in owners if owner is not None}


def ended(store, ids) -> bool:
    return all(store.jobs.get(job_id).is_terminal for job_id in ids)


def at_most_one_trainer_each(service: Service, finished) -> bool:
    """Watch until all have ended that no job has two trainers."""
    while not finished():
        running: Counter[str] = Counter()
        for process in service.trainers():
            try:
                running[process.environ()["NML_ATTEMPT"].split(".")[0]] += len(process.cmdline()) > 0
            except psutil.Error:
                continue
        if any(count > 1 for count in running.values()):
            return False
        time.sleep(0.2)
    return True
