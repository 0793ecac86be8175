"""Published files that are changed, cut short or lost while the service runs: noticed, named, and never served."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import httpx
import numpy as np
import pytest

from service.client import ApiError, Client
from service.embeddings.layout import INVERSE_NORMS, LABELS, VECTORS
from service.embeddings.scrubber import CHECKED, Scrubber
from service.settings import Settings
from service.store import open_store
from tests.abuse.attackers import attacked, client, train
from tests.service.api.embeddings.published import put_version
from tests.service.api.server import Live
from tests.service.api.test_problems import checked
from tests.service.client.published import Published, conclude
from tests.trainer.tracking.mlflow_server import free_port

ROWS, DIM = 4_000, 32


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with attacked(tmp_path / "home") as server:
        yield server


def folder(live: Live, made: Published) -> Path:
    return live.settings.version_directory(made.version)


def flip(path: Path, *, quietly: bool) -> None:
    """Change the last byte; quietly, as a failing disk does: nothing else of the file changes."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    if quietly:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def requests(http: httpx.Client, ref: str) -> dict[str, httpx.Response]:
    """One of each kind that reads the files of a version."""
    own = f"/v1/embeddings/{ref}"
    return {
        "node": http.get(f"{own}/nodes/{ROWS - 1}"),
        "lookup": http.post(f"{own}/lookup", json={"ids": [0, ROWS - 1]}),
        "many": http.post(f"{own}/lookup", json={"ids": list(range(ROWS))}, headers={"Accept": "application/x-npy"}),
        "neighbors": http.post(f"{own}/neighbors", json={"ids": [0], "k": 3}),
        "vectors": http.post(f"{own}/neighbors", json={"vectors": [[1.0] * DIM], "k": 3}),
        "filter": http.post(f"{own}/neighbors", json={"ids": [0], "filter": {"labels": ["class 0"]}}),
        "npy": http.get(f"{own}/download?format=npy"),
        "parquet": http.get(f"{own}/download?format=parquet"),
    }


def check_refused(answers: dict[str, httpx.Response], why: str) -> None:
    for name, answer in answers.items():
        assert answer.status_code == 503, (name, answer.status_code)
        problem = answer.json()
        assert problem["type"] == "urn:nml:problem:damaged", (name, problem)
        assert why in problem["detail"]
        assert "Publish it again" in problem["detail"]
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("file", [VECTORS, INVERSE_NORMS, LABELS, "ids.npy"])
@pytest.mark.parametrize("how", ["cut", "empty", "longer", "changed", "replaced"])
def test_what_is_written_to_an_open_file_is_noticed_by_the_next_request(live: Live, file: str, how: str) -> None:
    mine = client(live, "submit")
    made = train(live, mine, rows=ROWS, dim=DIM, labels=3)
    assert {name: answer.status_code for name, answer in requests(mine, made.version).items() if answer.is_error} == {}
    path = folder(live, made) / file
    match how:
        case "cut":
            os.truncate(path, path.stat().st_size // 2)
        case "empty":
            os.truncate(path, 0)
        case "longer":
            os.truncate(path, 2 * path.stat().st_size)
        case "changed":
            flip(path, quietly=False)
        case "replaced":
            other = path.with_name("other")
            other.write_bytes(bytes(path.stat().st_size))
            other.rename(path)
    check_refused(requests(mine, made.version), file)
    shown = mine.get(f"/v1/embeddings/{made.version}").json()
    assert (shown["state"], file in shown["failure"], shown["links"]["lookup"]) == ("damaged", True, None)
    check_refused({"alias": mine.get("/v1/embeddings/latest/nodes/0")}, file)
    assert mine.get("/livez").status_code == 200


def test_a_file_that_was_only_touched_is_served_on(live: Live) -> None:
    mine = client(live, "submit")
    made = train(live, mine, rows=ROWS, dim=DIM, labels=3)
    requests(mine, made.version)
    os.utime(folder(live, made) / VECTORS)
    assert {answer.status_code for answer in requests(mine, made.version).values()} == {200}


def test_what_a_failing_disk_has_changed_is_not_served_after_a_restart(live: Live) -> None:
    mine = client(live, "submit")
    made = train(live, mine, rows=ROWS, dim=DIM, labels=3)
    flip(folder(live, made) / VECTORS, quietly=True)
    check_refused(requests(mine, made.version), f"{VECTORS} differs from the checksum")


def test_a_damaged_version_is_published_again_from_its_run(live: Live) -> None:
    mine, admin = client(live, "submit"), client(live, "admin")
    made = train(live, mine, rows=ROWS, dim=DIM, labels=3)
    path = folder(live, made) / INVERSE_NORMS
    flip(path, quietly=True)
    check_refused({"node": mine.get(f"/v1/embeddings/{made.version}/nodes/0")}, INVERSE_NORMS)
    assert admin.post("/v1/embeddings", json={"job": made.version}).status_code == 202
    conclude(live, made.version)
    answer = mine.get(f"/v1/embeddings/{made.version}/nodes/1")
    assert np.allclose(answer.json()["vector"], made.vectors[1])


def test_a_patient_client_does_not_wait_for_what_needs_somebody_to_mend_it(live: Live) -> None:
    mine = client(live, "submit")
    made = train(live, mine, rows=ROWS, dim=DIM)
    flip(folder(live, made) / VECTORS, quietly=True)
    key = live.store.keys.create("test", frozenset({"read"}))[1]
    with Client(live.url, key, patience=600.0) as patient, pytest.raises(ApiError, match="is damaged") as refused:
        patient.vectors.vector(made.version, 0)
    assert refused.value.status == 503


def test_a_damaged_version_can_be_deleted_and_its_alias_moved(live: Live) -> None:
    mine = client(live, "submit")
    kept = train(live, mine, rows=ROWS, dim=DIM)
    made = train(live, mine, rows=ROWS, dim=DIM)
    os.truncate(folder(live, made) / VECTORS, 100)
    assert checked(mine.get(f"/v1/embeddings/{made.version}/nodes/0"), 503)
    assert mine.delete(f"/v1/embeddings/{made.version}").status_code == 204
    assert mine.get("/v1/embeddings/latest/nodes/0").headers["nml-version"] == kept.version


def test_the_scrubber_finds_what_nobody_asked_for_and_looks_at_the_rest_later(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    store = open_store(settings)
    made = [put_version(store, settings, rows=50, dim=4).info.version for _ in range(3)]
    scrubber = Scrubber(store, settings, bytes_per_second=1e12)
    assert scrubber.check_all() == []
    places = [settings.version_directory(version) for version in made]
    assert all((place / CHECKED).exists() for place in places)
    flip(places[0] / VECTORS, quietly=True)
    assert scrubber.check_all() == [], "checked a moment ago"
    for place in places:
        os.utime(place / CHECKED, (0, 0))
    (places[1] / LABELS).unlink(missing_ok=True)
    (places[1] / VECTORS).unlink()
    assert sorted(scrubber.check_all()) == sorted(made[:2])
    states: list[Any] = [store.embeddings.get(version) for version in made]
    assert [row.state for row in states] == ["damaged", "damaged", "ready"]
    assert "differs from the checksum" in states[0].failure
    assert "is gone" in states[1].failure
    assert scrubber.check_all() == []
    store.close()


def test_a_scrubber_that_is_told_to_stop_does_so_within_a_piece(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    store = open_store(settings)
    version = put_version(store, settings, rows=50, dim=4).info.version
    scrubber = Scrubber(store, settings, bytes_per_second=0.001)
    scrubber.start()
    scrubber.stop()
    row = store.embeddings.get(version)
    assert row is not None
    assert row.state == "ready"
    store.close()


def test_a_scrubber_that_is_stopped_in_the_middle_of_a_file_does_not_call_it_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(threading.Event):
        """Says when it is first waited for: after the first piece of a file."""

        def __init__(self) -> None:
            super().__init__()
            self.awaited = threading.Event()

        def wait(self, timeout: float | None = None) -> bool:
            self.awaited.set()
            return super().wait(timeout)

    settings = Settings(home=tmp_path)
    store = open_store(settings)
    version = put_version(store, settings, rows=50, dim=4).info.version
    scrubber, stop = Scrubber(store, settings, bytes_per_second=0.001), Watched()
    monkeypatch.setattr(scrubber, "_stop", stop)
    scrubber.start()
    assert stop.awaited.wait(60)
    scrubber.stop()
    row = store.embeddings.get(version)
    assert row is not None
    assert (row.state, row.failure) == ("ready", None)
    assert not (settings.version_directory(version) / CHECKED).exists()
    store.close()


def test_cutting_a_file_short_does_not_end_the_process(tmp_path: Path) -> None:
    """A real API process, for the end of a process by a signal cannot be seen from within."""
    settings = Settings(home=tmp_path, port=free_port(), min_free_bytes=0)
    store = open_store(settings)
    versions = [put_version(store, settings, rows=ROWS, dim=DIM, labels=3).info.version for _ in range(8)]
    store.close()
    process = Popen(
        [sys.executable, "-m", "service.serve_api"], env=os.environ | settings.environment(), stdout=PIPE, stderr=PIPE
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{settings.port}", timeout=60) as http:
        try:
            while True:
                try:
                    http.get("/livez")
                    break
                except httpx.TransportError:
                    assert process.poll() is None, process.communicate()
            for number, version in enumerate(versions):
                assert {answer.status_code for answer in requests(http, version).values()} == {200}
                path = settings.version_directory(version) / (VECTORS, INVERSE_NORMS, LABELS, "ids.npy")[number % 4]
                os.truncate(path, (0, 4096)[number % 2])
                assert {answer.status_code for answer in requests(http, version).values()} == {503}
                assert process.poll() is None, f"ended by {process.returncode}"
        finally:
            process.terminate()
            process.communicate(timeout=60)
