"""The whole way of an upload: server, dispatcher and importer, each a process or thread of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from service.settings import Settings
from tests.faults.services import wait_for
from tests.service.api.server import Live, serving
from tests.service.datasets.forms import EDGES, NODES, graph, npz


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("home")
    settings = Settings(home=home, memory_limit="4GB", min_free_bytes=0, poll_seconds=0.05, upload_wait_seconds=120)
    environment = os.environ | settings.environment() | {"OMP_NUM_THREADS": "1"}
    with serving(settings) as server:
        dispatcher = subprocess.Popen([sys.executable, "-m", "service.dispatch"], env=environment)
        try:
            # an upload waits for its check only while a dispatcher is alive to begin it
            wait_for(lambda: server.store.dispatchers.alive(60), 120)
            yield server
        finally:
            dispatcher.terminate()
            assert dispatcher.wait(60) == 0


@pytest.mark.parametrize(
    "name, files, features",
    [
        ("tables", {"nodes": ("n.csv", NODES), "edges": ("e.csv", EDGES)}, 2),
        ("npz", {"npz": ("g.npz", npz(**graph()))}, 2),
    ],
)
def test_an_upload_is_checked_and_can_be_trained_on(live: Live, name, files, features):
    answer = live.http.post("/v1/datasets", data={"name": name}, files=files, timeout=150)
    assert answer.status_code == 201, answer.text
    document = answer.json()
    assert (document["nodes"], document["features"], document["degree"]["isolated"]) == (4, features, 0)
    job = live.submit({"data": {"name": "imported", "imported": name}, "optimiser": {"epochs": 1}})
    assert job["dataset"] == document["ref"]
    live.store.jobs.cancel(job["id"])
    assert not list(live.settings.uploads.iterdir())


def test_a_wrong_upload_is_refused_with_the_importers_words(live: Live):
    files = {"nodes": ("n.csv", NODES + "p,cat,1,1\n"), "edges": ("e.csv", EDGES)}
    answer = live.http.post("/v1/datasets", data={"name": "wrong"}, files=files, timeout=150)
    problem = answer.json()
    assert (answer.status_code, problem["errors"][0]["field"]) == (422, "nodes")
    assert problem["detail"] == 'nodes.csv, row 6: id "p" is already used in row 2. Ids must differ: rename one.'
    shown = live.http.get("/v1/datasets/wrong").json()
    job = live.store.jobs.get(shown["job"])
    assert job is not None
    assert (shown["state"], job.failure_kind, job.attempt) == ("failed", "invalid", 1)
