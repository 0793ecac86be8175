"""Jobs that ask for more threads and processes than there are CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from service.settings import Settings
from tests.abuse.attackers import attacked, client
from tests.service.api.server import SMALL, Live
from trainer.planning.cpus import usable_cpus


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with attacked(tmp_path_factory.mktemp("home"), cpu_limit=4) as server:
        yield server


BATCHES: dict[str, Any] = {"negatives": "batch", "batch_size": 16}


@pytest.mark.parametrize(
    "route, change, field",
    [
        ("jobs", {"run": {"threads": 1_024}}, "run.threads"),
        ("jobs", {"run": {"threads": 5}}, "run.threads"),
        ("jobs", {"run": {"workers": 5}, "sampling": BATCHES}, "run.workers"),
        ("jobs", {"run": {"workers": 2, "threads": 3}, "sampling": BATCHES}, "run.threads"),
        ("jobs", {"sampling": {**BATCHES, "loader_workers": 64}}, "sampling.loader_workers"),
        ("sweeps", {"resources": {"cpus": 1_024}}, "resources.cpus"),
        ("sweeps", {"concurrency": 5}, "concurrency"),
        ("sweeps", {"base": {**SMALL, "sampling": {**BATCHES, "loader_workers": 5}}}, "base.sampling.loader_workers"),
        (
            "sweeps",
            {
                "base": {**SMALL, "sampling": BATCHES},
                "space": {"sampling.loader_workers": {"kind": "choice", "values": [0, 5]}},
            },
            "base.sampling.loader_workers",
        ),
    ],
)
def test_more_than_the_cpus_there_are_is_refused_with_the_bound(live: Live, route: str, change: Any, field: str):
    document = {**SMALL, **change} if route == "jobs" else {"base": SMALL, **change}
    answer = client(live, "submit").post(f"/v1/{route}", json=document)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field), answer.text
    assert "the 4 CPUs" in answer.json()["detail"]


@pytest.mark.parametrize(
    "change",
    [
        {"run": {"threads": 4}},
        {"run": {"workers": 2, "threads": 2}, "sampling": {**BATCHES, "loader_workers": 2}},
        {"run": {"workers": 4}, "sampling": BATCHES},
    ],
)
def test_as_many_as_there_are_is_taken(live: Live, change: Any):
    answer = client(live, "submit").post("/v1/jobs", json={**SMALL, **change})
    assert answer.status_code == 202, answer.text


def test_the_bound_is_the_machine_s_unless_it_is_set_and_a_cluster_has_its_own(tmp_path):
    ray = {"runner": "ray", "ray_jobs_url": "http://head:8265"}
    assert Settings(home=tmp_path).job_cpus == usable_cpus()
    assert Settings(home=tmp_path, **ray).job_cpus is None
    assert Settings(home=tmp_path, cpu_limit=64, **ray).job_cpus == 64
