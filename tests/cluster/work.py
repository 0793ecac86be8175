"""Jobs and sweeps for the cluster, small but long enough to be struck, and what must be true of them afterwards."""

from __future__ import annotations

import json
from typing import Any

import httpx

from service.client import Client, Event, Job
from tests.cluster.runtime.cluster import Cluster, wait_for
from tests.cluster.runtime.container import Container
from tests.cluster.runtime.network import inside
from tests.faults.histories import check_history, curve, small_spec

WORKERS = ("ray-worker-1", "ray-worker-2")
SPACE = {"method.temperature": {"kind": "uniform", "low": 0.2, "high": 1.0}}
PATIENCE = 600.0


def train_spec(experiment: str, *, epochs: int, seed: int = 0) -> dict[str, Any]:
    return small_spec(seed, epochs, run={"experiment": experiment})


def sweep_spec(experiment: str, *, trials: int, epochs: int) -> dict[str, Any]:
    return {
        "base": train_spec(experiment, epochs=epochs), "space": SPACE, "trials": trials, "objective": "i_nml",
        "algorithm": "random", "scheduler": {"kind": "none"}, "report_every": max(1, epochs // 10),
    }  # fmt: skip


def journal(cluster: Cluster, sweep: Job) -> list[dict[str, Any]]:
    """What the sweep itself wrote, complete lines only."""
    file = cluster.volumes / "data" / "runs" / sweep.id / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def hosts_of_trials(cluster: Cluster, sweep: Job) -> dict[int, list[str]]:
    """Where each trial ran, in order."""
    hosts: dict[int, list[str]] = {}
    for event in journal(cluster, sweep):
        if event["type"] == "running":
            hosts.setdefault(event["number"], []).append(event["host"])
    return hosts


def worker_of(cluster: Cluster, job: Job) -> Container | None:
    """The worker on which the present attempt of a job has its processes."""
    for name in WORKERS:
        for process in cluster[name].processes().values():
            if any(entry.startswith(f"NML_ATTEMPT={job.id}.") for entry in process.environment):
                return cluster[name]
    return None


def wait_for_epoch(client: Client, job: Job, epoch: int) -> None:
    """Until training is well under way: a checkpoint lies behind it, and much before it."""
    wait_for(lambda: (client.job(job.id).progress or {}).get("epoch", 0) >= epoch, PATIENCE, f"epoch {epoch}")


def history(client: Client, job: Job) -> list[Event]:
    return list(client.events(job.id))


def check_one_history(client: Client, job: Job, *, epochs: int) -> list[dict[str, Any]]:
    """Numbered without a gap, one end, each epoch once and in order; the curve."""
    events = history(client, job)
    check_history(events, "succeeded")  # type: ignore[arg-type]
    found = curve(events)  # type: ignore[arg-type]
    assert len(found) == epochs
    return found


def mlflow_runs(cluster: Cluster, experiment: str) -> list[dict[str, Any]]:
    """Of an experiment, asked of the server from inside, with the password."""
    host = cluster["mlflow"].host
    with (
        inside(cluster["encoder"].host),
        httpx.Client(
            base_url=f"http://{host.address}:5000/api/2.0/mlflow", auth=("nml", cluster.variables["MLFLOW_PASSWORD"]),
            headers={"Host": "mlflow:5000"}, timeout=60,
        ) as server,
    ):  # fmt: skip
        found = server.get("/experiments/get-by-name", params={"experiment_name": experiment})
        if found.status_code == 404:
            return []
        body = {
            "experiment_ids": [found.raise_for_status().json()["experiment"]["experiment_id"]],
            "max_results": 1_000,
        }
        return list(server.post("/runs/search", json=body).raise_for_status().json().get("runs", []))


def ray_nodes(cluster: Cluster) -> dict[str, str]:
    """Address and state of every node that Ray's head knows; the newest of an address."""
    head = cluster["ray-head"].host
    headers = {"Authorization": f"Bearer {cluster.variables['RAY_AUTH_TOKEN']}"}
    with inside(cluster["encoder"].host):
        answer = httpx.get(f"http://{head.address}:8265/api/v0/nodes?limit=100", headers=headers, timeout=30)
    rows = answer.raise_for_status().json()["data"]["result"]["result"]
    alive = {row["node_ip"]: row["state"] for row in rows if row["state"] != "ALIVE"}
    return alive | {row["node_ip"]: "ALIVE" for row in rows if row["state"] == "ALIVE"}
