"""Backup, wipe, restore: what the service knew and kept is back, to the byte."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.client import Client
from tests.cluster.runtime.cluster import Cluster
from tests.cluster.work import PATIENCE, history, mlflow_runs, sweep_spec, train_spec

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_500)]
NODES = 240


def write_graph(folder: Path) -> tuple[Path, Path]:
    """A graph of someone's own: names as ids, three groups."""
    random = np.random.default_rng(0)
    group = np.arange(NODES) % 3
    features = random.normal(size=(NODES, 8)) + 2 * np.eye(3, 8)[group]
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    rows = [f"p-{node},{','.join(f'{value:.4f}' for value in features[node])}" for node in range(NODES)]
    nodes.write_text("\n".join(["id," + ",".join(f"x{column}" for column in range(8)), *rows]) + "\n")
    pairs = [
        (node, int(random.choice(np.flatnonzero(group == group[node])))) for node in range(NODES) for _ in range(3)
    ]
    edges.write_text(
        "\n".join(["source,target", *(f"p-{one},p-{other}" for one, other in pairs if one != other)]) + "\n"
    )
    return nodes, edges


def all_that_is_known(cluster: Cluster, client: Client, folder: Path) -> dict[str, Any]:
    """By the API and by MLflow's server, asked from outside and from inside."""
    folder.mkdir()
    jobs = sorted(client.jobs(), key=lambda job: job.id)
    found: dict[str, Any] = {
        "jobs": [(job.id, job.state, job.attempt, dict(job.result), job.mlflow_run_id) for job in jobs],
        "sweeps": sorted((sweep.id, sweep.state, dict(sweep.result)) for sweep in client.sweeps()),
        "trials": {sweep.id: client.trials(sweep.id) for sweep in client.sweeps()},
        "histories": {
            job.id: [(event.seq, event.type, dict(event.data)) for event in history(client, job)] for job in jobs
        },
        "datasets": {each.ref: each.document for each in client.datasets()},
        "aliases": sorted((alias.name, alias.version) for alias in client.vectors.aliases()),
        "mlflow": [],
    }
    for version in client.vectors.list():
        client.vectors.download(version.version, folder / version.version)
        client.vectors.download(version.version, folder / f"{version.version}-ids", "ids")
        files = (folder / version.version, folder / f"{version.version}-ids")
        found[f"embeddings {version.version}"] = [file.read_bytes() for file in files]
    for experiment in ("kept", "kept-sweep"):
        for run in mlflow_runs(cluster, experiment):
            metrics = sorted((each["key"], each["value"]) for each in run["data"]["metrics"])
            found["mlflow"].append((run["info"]["run_id"], run["info"]["status"], metrics))
    found["mlflow"].sort()
    return found


def test_everything_is_back_after_a_wipe(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    nodes, edges = write_graph(tmp_path)
    dataset = client.push_dataset("people", nodes=nodes, edges=edges)
    spec = train_spec("kept", epochs=20) | {"data": {"name": "imported", "imported": dataset.ref}}
    job = client.wait(client.submit(spec), PATIENCE)
    version = client.vectors.wait(job, PATIENCE)
    client.vectors.set_alias("production", version.version)
    client.wait(client.submit_sweep(sweep_spec("kept-sweep", trials=2, epochs=20)), PATIENCE)
    before = all_that_is_known(cluster, client, tmp_path / "before")
    assert dataset.ref in before["datasets"]
    assert ("production", version.version) in before["aliases"]
    assert len(before["mlflow"]) == 4  # the job, the sweep and its two trials

    cluster.run("backup")
    cluster.down()
    for name in ("data", "mlflow", "postgres"):
        shutil.rmtree(cluster.volumes / name)
    cluster.start("postgres")
    cluster["postgres"].wait_until_healthy(PATIENCE)
    told = cluster.run("restore", "latest")
    assert "restored" in told
    cluster.up()

    after = all_that_is_known(cluster, client, tmp_path / "after")
    assert after == before
    assert client.vectors.lookup("production", ["p-7"]).vectors.tobytes() == _row(before, version.version, "p-7", nodes)
    again = client.wait(client.submit(spec), PATIENCE)  # and it works
    assert again.state == "succeeded"
    assert client.vectors.wait(again, PATIENCE).version != version.version


def _row(known: dict[str, Any], version: str, node: str, nodes: Path) -> bytes:
    """A node's vector in the file that was downloaded before, by its line in the upload."""
    table = np.load(nodes.parent / "before" / version)
    place = [line.split(",")[0] for line in nodes.read_text().splitlines()[1:]].index(node)
    return table[place].astype(np.float32).tobytes()
