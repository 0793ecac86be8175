"""Two `nml serve` on one home: they share its queue, nothing runs twice, and each goes on when the other is killed."""

from __future__ import annotations

import pytest

from service.store import open_store
from tests.faults.histories import all_events, check_history, curve, small_spec, uninterrupted, wait_all
from tests.faults.services import Service, wait_for
from tests.faults.test_fencing import at_most_one_trainer_each, ended
from tests.faults.test_outages import epoch_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EPOCHS = 150


def test_two_services_on_one_home_share_its_jobs_and_outlive_each_other(tmp_path):
    document = small_spec(epochs=EPOCHS, run={"track": False})
    reference = uninterrupted(document, tmp_path / "reference")
    first, second = (Service(tmp_path / "home", concurrency=1) for _ in range(2))
    try:
        first.start()
        first.wait_until_ready()
        second.start()
        wait_for(lambda: "serves the same queue" in second.last_words(), 120, second.last_words)
        second.wait_until_ready()
        with first.client() as one, second.client() as other:
            ids = [client.submit(document).id for client in (one, other) for _ in range(2)]
            wait_for(lambda: sum(epoch_of(other, job_id) > 0 for job_id in ids) == 2, 120, second.last_words)
            first.kill()  # its trainer goes on, and the other service takes it over
            store = open_store(second.settings)
            assert at_most_one_trainer_each(second, lambda: ended(store, ids))
            assert wait_all(other, ids, 300) == dict.fromkeys(ids, "succeeded")
            for job_id in ids:
                found = store.jobs.get(job_id)
                assert (found.attempt, found.infra_retries) == (1, 0)
                events = all_events(store, job_id)
                check_history(events, "succeeded")
                assert curve(events) == reference
            store.close()
    finally:
        for service in (second, first):
            service.end()
