"""What the service stands on goes away for a while: the database, the disk, the tracker, the service itself."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.client import Client, Event, JobFailed
from service.store import open_store
from tests import postgres
from tests.faults.histories import all_events, check_history, curve, small_spec, uninterrupted, wait_all, written_curve
from tests.faults.services import Service, wait_for
from tests.trainer.tracking.mlflow_server import free_port

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(600)]
OUTAGE = 20.0  # seconds, several leases


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[None]:
    """A file system of its own at `place`, in memory."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "nml-test", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def may_mount() -> bool:
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as place:
        try:
            with small_disk(Path(place), 64):
                return True
        except (subprocess.CalledProcessError, FileNotFoundError):
            return False


@pytest.mark.skipif(postgres.MISSING, reason=postgres.MISSING_REASON)
def test_database_gone_for_twenty_seconds_loses_nothing(tmp_path):
    document = small_spec(epochs=1_500)
    with postgres.running() as server:
        service = Service(
            tmp_path / "home", database_url=server.new_database(f"t{secrets.token_hex(4)}"), concurrency=2
        )
        service.start()
        try:
            service.wait_until_ready()
            client = service.client()
            ids = [client.submit(document).id for _ in range(2)]
            seen: list[Event] = []
            watcher = threading.Thread(target=lambda: seen.extend(watch(service.client(), ids[0])))
            watcher.start()
            wait_for(lambda: all(epoch_of(client, job_id) for job_id in ids), 120, service.last_words)
            server.kill()
            answers = outage(service)
            server.start()
            assert {status for status, _ in answers} <= {200, 503}
            assert {kind for status, kind in answers if status == 503} == {"application/problem+json"}
            assert wait_all(client, ids, 300) == dict.fromkeys(ids, "succeeded")
            late = client.submit(small_spec()).id  # and it takes new ones
            assert wait_all(client, [late], 120) == {late: "succeeded"}
            watcher.join(120)
            store = open_store(service.settings)
            for job_id in ids:
                events = all_events(store, job_id)
                check_history(events, "succeeded")
                assert curve(events) == written_curve(service.settings.run_directory(job_id))
                assert store.jobs.get(job_id).attempt == 1  # the trainers never knew
            assert [event.seq for event in seen] == [event.seq for event in all_events(store, ids[0])]
            store.close()
        finally:
            service.end()


def watch(client: Client, job_id: str) -> list[Event]:
    with client:
        return list(client.events(job_id))


def epoch_of(client: Client, job_id: str) -> int:
    return int(client.job(job_id).document["progress"].get("epoch") or 0)


def outage(service: Service) -> set[tuple[int, str]]:
    """Ask all the while; statuses and content types. The API must stay alive."""
    answers, end = set(), time.monotonic() + OUTAGE
    while time.monotonic() < end:
        answer = httpx.get(f"{service.url}/v1/jobs", timeout=30)
        answers.add((answer.status_code, answer.headers["content-type"].split(";")[0]))
        assert httpx.get(f"{service.url}/livez", timeout=30).status_code == 200
        time.sleep(0.5)
    assert httpx.get(f"{service.url}/readyz", timeout=30).status_code == 503
    return answers


def fill(file: Path, *, leaving: int) -> None:
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(b"\0" * 65_536)
        except OSError:
            out.truncate(out.tell() - leaving)


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount a small file system: no disk is filled here")
def test_full_disk_fails_the_job_with_a_clear_message_and_the_service_lives(tmp_path):
    service = Service(tmp_path / "home", infra_retries=1)
    with small_disk(service.settings.runs, 20_000):
        filler = service.settings.runs / "filler"
        try:
            service.start()
            service.wait_until_ready()
            fill(filler, leaving=48_000)  # enough to begin, too little for a checkpoint
            client = service.client()
            job = client.submit(small_spec())
            with pytest.raises(JobFailed, match=r"disk is full|No space left on device"):
                client.wait(job, timeout=180)
            failed = client.job(job.id)
            assert (failed.failure_kind, failed.document["retries"]["infra"]) == ("infra", 1)
            filler.unlink()
            assert client.wait(client.submit(small_spec()), timeout=180).state == "succeeded"
        finally:
            service.end()


def test_dead_tracker_costs_metrics_and_not_the_job(tmp_path):
    service = Service(tmp_path / "home", mlflow_uri=f"http://127.0.0.1:{free_port()}")
    service.start()
    try:
        service.wait_until_ready()
        client = service.client()
        job = client.wait(client.submit(small_spec()), timeout=240)
        assert job.state == "succeeded"
        store = open_store(service.settings)
        assert store.jobs.get(job.id).tracker_error
        assert store.jobs.figures()["tracker_errors"] == 1
        store.close()
    finally:
        service.end()


def test_service_stopped_and_started_goes_on_with_the_same_curve(tmp_path):
    document = small_spec(epochs=300)
    reference = uninterrupted(document, tmp_path / "reference")
    service = Service(tmp_path / "home")
    service.start()
    try:
        service.wait_until_ready()
        client = service.client()
        job = client.submit(document)
        wait_for(lambda: epoch_of(client, job.id) > 20, 120, service.last_words)
        assert service.stop() == 0
        assert not service.trainers()
        assert not service.shims()
        service.start()
        client.wait(job, timeout=240)
        store = open_store(service.settings)
        stored = store.jobs.get(job.id)
        assert (stored.attempt, stored.infra_retries) == (2, 0)  # stopping is nobody's failure
        events = all_events(store, job.id)
        check_history(events, "succeeded")
        assert curve(events) == reference
        store.close()
    finally:
        service.end()
