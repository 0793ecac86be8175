"""What a team uses it for: a job and a sweep over REST, on both workers, and embeddings served."""

from __future__ import annotations

import sys

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_digits

from service.client import Client
from tests.cluster.runtime.cluster import Cluster, wait_for
from tests.cluster.work import (
    PATIENCE,
    WORKERS,
    check_one_history,
    hosts_of_trials,
    journal,
    mlflow_runs,
    ray_nodes,
    sweep_spec,
)
from trainer.config import parse_spec
from trainer.data.datasets import load

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_500)]
EPOCHS = 30
DIGITS = {
    "data": {"name": "digits"}, "encoder": {"hidden": 64, "dim": 32}, "method": {"metric": {"hidden": 32}},
    "optimiser": {"epochs": EPOCHS}, "evaluation": {"figures": False, "probe_epochs": 50},
    "run": {"experiment": "jobs", "threads": 1},
}  # fmt: skip


def test_nobody_gets_in_without_a_key(cluster: Cluster, client: Client) -> None:
    assert httpx.get(f"{client.url}/v1/jobs").status_code == 401
    assert httpx.get(f"{client.url}/readyz").status_code == 200


def test_ray_has_a_head_without_room_for_jobs_and_two_workers(cluster: Cluster) -> None:
    alive = {address for address, state in ray_nodes(cluster).items() if state == "ALIVE"}
    assert alive == {cluster[name].host.address for name in ("ray-head", *WORKERS)}


def test_a_job_trains_and_its_embeddings_are_served(cluster: Cluster, client: Client) -> None:
    digits = load_digits()
    job = client.wait(client.submit(DIGITS), PATIENCE)
    assert job.state == "succeeded", job
    assert len(check_one_history(client, job, epochs=EPOCHS)) == EPOCHS
    (run,) = mlflow_runs(cluster, "jobs")
    assert run["info"]["status"] == "FINISHED"
    assert run["info"]["run_id"] == job.mlflow_run_id

    version = client.vectors.wait(job, PATIENCE)
    vectors, ids = client.embeddings(job)
    assert vectors.shape == (len(digits.target), 32)
    asked = [5, 1_000, 7]
    places = [list(ids).index(node) for node in asked]
    np.testing.assert_array_equal(client.vectors.lookup(version.version, asked).vectors, vectors[places])

    near = client.vectors.neighbors("latest", ids=[5], k=5)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = unit @ unit[places[0]]
    scores[places[0]] = -np.inf
    assert list(near.ids[0]) == [ids[place] for place in np.argsort(-scores)[:5]]


def test_new_nodes_and_labels_come_from_the_encoder(cluster: Cluster, client: Client) -> None:
    """The API's image has no torch; here it is shown that the API asks the encoder for what needs it."""
    digits = load_digits()
    graph = load(parse_spec(DIGITS).data)
    source, target = graph.edge_index.numpy()
    friends = np.unique(target[source == 5]).tolist()
    twin = {"id": "twin", "features": graph.x[5].tolist(), "edges": friends}
    found = client.vectors.embed("latest", [twin], neighbors=5)
    assert found.vectors.shape == (1, 32)
    assert found.neighbors is not None
    assert 5 in found.neighbors.ids[0]
    original = client.vectors.vector("latest", 5)  # the same features and friends, each of whom has one more
    assert original @ found.vectors[0] > 0.95 * np.linalg.norm(original) * np.linalg.norm(found.vectors[0])

    known = {int(node): int(digits.target[node]) for node in range(0, 1_797, 9)}
    asked = [node for node in range(1_797) if node not in known]
    told = client.vectors.classify("latest", known, asked)
    assert np.mean(np.asarray(told.labels, int) == digits.target[asked]) > 0.6  # by chance: 0.1

    assert not [words for words in _running(cluster, "api") if "service.encoder" in words]
    assert [words for words in _running(cluster, "encoder") if "service.encoder" in words]
    cluster["encoder"].crash()
    again = client.vectors.embed("latest", [twin])  # the client waits until the restart policy has brought it back
    np.testing.assert_array_equal(again.vectors, found.vectors)


def test_twelve_trials_run_on_both_workers(cluster: Cluster, client: Client) -> None:
    sweep = client.submit_sweep(sweep_spec("sweep", trials=12, epochs=150))
    seen: dict[str, set[int]] = {name: set() for name in WORKERS}

    def has_ended() -> bool:
        for event in journal(cluster, sweep):  # what a trial says of itself is compared with what runs on that host
            if event["type"] == "running" and event["host"] in seen:
                process = cluster[event["host"]].processes().get(event["pid"])
                if process is not None and any(word.startswith("ray::") for word in process.words):
                    seen[event["host"]].add(event["number"])
        return client.sweep(sweep.id).is_terminal

    wait_for(has_ended, PATIENCE, "the sweep")
    ended = client.sweep(sweep.id)
    assert ended.state == "succeeded", ended
    trials, hosts = client.trials(sweep.id), hosts_of_trials(cluster, sweep)
    rows = [f"{trial['number']:>5}  {trial['state']:<9} {' '.join(hosts[trial['number']])}" for trial in trials]
    sys.stderr.write("\n".join(["", "trial  state     host", *rows, ""]))
    assert [trial["number"] for trial in trials] == sorted(hosts)
    assert len(trials) == 12
    assert {trial["state"] for trial in trials} == {"finished"}
    assert {host for each in hosts.values() for host in each} == set(WORKERS)
    assert all(seen.values()), seen
    assert client.best(sweep.id)["data"]["name"] == "synthetic"
    children = [run for run in mlflow_runs(cluster, "sweep") if any(
        tag["key"] == "mlflow.parentRunId" for tag in run["data"]["tags"])]  # fmt: skip
    assert len(children) == 12
    assert {run["info"]["status"] for run in children} == {"FINISHED"}


def _running(cluster: Cluster, name: str) -> list[tuple[str, ...]]:
    return [process.words for process in cluster[name].processes().values()]
