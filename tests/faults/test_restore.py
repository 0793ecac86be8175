"""Backup of the whole service at work, everything lost, restore: what had ended is there, and what ran goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.client import ApiError
from service.store import open_store
from tests.faults.histories import all_events, check_history, curve, small_spec, uninterrupted
from tests.faults.services import Service, kill, wait_for
from tests.service.clusters import MISSING, MISSING_REASON, Place, server_with_roles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(MISSING, reason=MISSING_REASON)]
LONG = small_spec(1, epochs=600, run={"track": False})
CSV = {"nodes": "id,a,b\n" + "".join(f"n{i},{i % 3},{i % 5}\n" for i in range(60)),
       "edges": "source,target\n" + "".join(f"n{i},n{(i * 7 + 1) % 60}\n" for i in range(60))}  # fmt: skip


def test_a_service_that_lost_everything_goes_on_from_its_backup(tmp_path):
    reference = uninterrupted(LONG, tmp_path / "reference")
    with server_with_roles() as (server, passwords):
        place = Place(server, tmp_path, passwords)
        place.backups.mkdir()
        place.wipe()
        service = Service(place.home, database_url=place.settings.database_url, concurrency=2)
        try:
            finished, running, vectors, ref = work(service, tmp_path)
            place.backup()
            after = lose_everything(service, place)
            ended = place.run("restore.sh", "latest")
            assert ended.returncode == 0, ended.stderr
            service.start()
            service.wait_until_ready()
            with service.client() as client:
                assert client.job(finished).state == "succeeded"
                assert client.dataset(ref).state == "ready"
                assert client.vectors.alias("production").version == finished
                client.vectors.download("production", tmp_path / "back.npy")
                assert (tmp_path / "back.npy").read_bytes() == vectors
                with pytest.raises(ApiError):  # it was submitted after the backup
                    client.job(after)
                assert client.wait(running, timeout=240).state == "succeeded"
                client.vectors.wait(running, timeout=120)
            store = open_store(service.settings)
            events = all_events(store, running)
            check_history(events, "succeeded")
            assert curve(events) == reference
            assert store.jobs.get(running).attempt == 2
            store.close()
        finally:
            service.end()


def work(service: Service, folder: Path) -> tuple[str, str, bytes, str]:
    """A data set, a job that has ended with its vectors under an alias, and one that runs."""
    service.start()
    service.wait_until_ready()
    with service.client() as client:
        for name, text in CSV.items():
            (folder / f"{name}.csv").write_text(text)
        dataset = client.push_dataset("mine", nodes=folder / "nodes.csv", edges=folder / "edges.csv")
        finished = client.submit(small_spec(0, epochs=3, run={"track": False})).id
        client.wait(finished, timeout=120)
        client.vectors.wait(finished, timeout=120)
        client.vectors.set_alias("production", finished)
        client.vectors.download("production", folder / "before.npy")
        running = client.submit(LONG).id
        checkpoints = service.settings.run_directory(running) / "checkpoints"
        wait_for(lambda: list(checkpoints.glob("epoch-*")), 120, service.last_words)
    return finished, running, (folder / "before.npy").read_bytes(), dataset.ref


def lose_everything(service: Service, place: Place) -> str:
    """One more job, and then all processes, databases and folders are gone. Returns the job."""
    with service.client() as client:
        after = client.submit(small_spec(2, epochs=3, run={"track": False})).id
    service.kill()
    for process in (*service.shims(), *service.trainers()):
        kill(process)
    wait_for(lambda: not service.shims() and not service.trainers(), 120)
    service.log = place.folder / "serve.txt"  # not in the home: that must be empty
    place.wipe()
    assert not os.listdir(place.home)
    return after
