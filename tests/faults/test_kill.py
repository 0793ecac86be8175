"""kill -9 of API, dispatcher, shim and trainer at random moments: nothing is lost, nothing happens twice.

`make campaign` runs it, with 30 jobs on each kind of database. NML_KILL_JOBS and NML_KILLS make it shorter or longer;
the more kills for each job, the longer the jobs train, so that all of them hit something:

    NML_KILL_JOBS=50 NML_KILLS=200 python -m pytest tests/faults/test_kill.py -k sqlite -s
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from service.client import Client
from service.store import open_store
from tests import postgres
from tests.faults.histories import all_events, check_history, curve, mlflow_runs, small_spec, uninterrupted
from tests.faults.services import Service, kill, wait_for

JOBS = int(os.environ.get("NML_KILL_JOBS", "30"))
KILLS, SEEDS = int(os.environ.get("NML_KILLS", JOBS + 10)), 2
EPOCHS = 40 * max(1, round(KILLS / JOBS))
EACH_KILLED = JOBS // 10  # at least
SECONDS = max(900, 12 * KILLS)  # for all of them to end
Curves = dict[int, list[dict[str, float]]]  # by seed
pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(2 * SECONDS)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Curves:
    """Curves of uninterrupted runs, by seed."""
    place = tmp_path_factory.mktemp("reference")
    return {seed: uninterrupted(small_spec(seed, EPOCHS), place / str(seed)) for seed in range(SEEDS)}


@pytest.mark.parametrize(
    "database",
    [
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.skipif(postgres.MISSING, reason=postgres.MISSING_REASON)),
    ],
)
def test_jobs_survive_kills_at_random_moments(database, tmp_path, reference):
    if database == "sqlite":
        survive(tmp_path / "home", None, reference, tracked=True)
    else:  # MLflow, which costs each attempt seconds, does not see the database: once is enough
        with postgres.running() as server:
            survive(tmp_path / "home", server.new_database(f"t{secrets.token_hex(4)}"), reference, tracked=False)


def survive(home: Path, database_url: str | None, reference: Curves, *, tracked: bool) -> None:
    service = Service(home, database_url=database_url, concurrency=2, infra_retries=100)
    service.start()
    try:
        service.wait_until_ready()
        ids: dict[str, int] = {}
        submitting = threading.Thread(target=submit, args=[service.client(), ids, tracked])
        submitting.start()  # while the API is being killed
        killed = rampage(service, random.Random(f"{database_url is None}"), lambda: all_ended(service, ids))
        submitting.join(300)
        assert len(ids) == JOBS
        with service.client() as client:
            wait_for(lambda: all_ended(service, ids), SECONDS, lambda: f"{states(client, ids)} {service.last_words()}")
            assert states(client, ids) == Counter(succeeded=JOBS)
            assert len(list(client.jobs())) == JOBS  # the submissions that broke off were not made twice
        assert min(killed[victim] for victim in ("api", "dispatcher", "trainer")) >= EACH_KILLED, killed
        assert "NML_KILLS" not in os.environ or killed.total() >= KILLS, killed
        sys.stdout.write(f"{JOBS} jobs, {killed.total()} kills ({dict(killed)}): all succeeded\n")
        check(service, ids, reference)
        if tracked:
            runs = mlflow_runs(service.settings.tracking_uri, "faults")
            assert len(runs) == JOBS
            assert {run.info.status for run in runs} == {"FINISHED"}
    finally:
        service.end()


def submit(client: Client, ids: dict[str, int], tracked: bool) -> None:
    with client:
        for number in range(JOBS):
            spec = small_spec(number % SEEDS, EPOCHS, run={"track": tracked})
            ids[client.submit(spec, name=f"job {number}").id] = number % SEEDS
            time.sleep(0.5)


def rampage(service: Service, dice: random.Random, finished) -> Counter[str]:
    """Kill something every second or so; `nml serve` starts its own parts again, and is itself started again."""
    killed: Counter[str] = Counter()
    while killed.total() < KILLS and not finished():
        time.sleep(dice.uniform(0.5, 4.0))
        victim = dice.choices(["trainer", "dispatcher", "api", "shim", "all"], [10, 6, 5, 2, 1])[0]
        match victim:
            case "trainer":
                targets = service.trainers()
            case "shim":
                targets = service.shims()
            case "dispatcher":
                targets = service.parts("service.dispatch")
            case "api":
                targets = service.parts("service.serve_api")
            case _:
                service.kill()
                service.start()
                killed["all"] += 1
                continue
        if targets and kill(dice.choice(targets)):
            killed[victim] += 1
    return killed


def all_ended(service: Service, ids: dict[str, int]) -> bool:
    with service.client() as client:
        return len(ids) == JOBS and states(client, ids).keys() <= {"succeeded", "failed", "cancelled"}


def states(client: Client, ids: dict[str, int]) -> Counter[str]:
    return Counter(client.job(job_id).state for job_id in ids)


def check(service: Service, ids: dict[str, int], reference: Curves) -> None:
    store = open_store(service.settings)
    try:
        for job_id, seed in ids.items():
            events = all_events(store, job_id)
            check_history(events, "succeeded")
            assert curve(events) == reference[seed], job_id
        retries = sum(store.jobs.get(job_id).infra_retries for job_id in ids)
        # what follows each of them comes to its end too
        wait_for(lambda: {store.embeddings.get(job_id).state for job_id in ids} == {"ready"}, 120)
    finally:
        store.close()
    assert retries >= EACH_KILLED  # else the kills hit nothing that mattered
    assert not service.trainers()
