"""The job service under load, side by side with a bare FastAPI route under the same server in the same run.

    python tests/benchmarks/service.py status      GET /v1/jobs/{id}: answers per second, over the bare route's
    python tests/benchmarks/service.py training    its latency while training takes all cores
    python tests/benchmarks/service.py submit      2,000 jobs by 64 clients at once: none lost, none doubled

Ratios are what counts. Requests come from a process of their own (tests/benchmarks/http_load.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # it is run as a script, from anywhere

from service.store import open_store  # noqa: E402
from service.store.records import Claim, NewJob  # noqa: E402
from tests.faults.histories import small_spec  # noqa: E402
from tests.faults.services import Service, wait_for  # noqa: E402
from tests.trainer.tracking.mlflow_server import free_port  # noqa: E402
from trainer.config import parse_spec  # noqa: E402

ROUNDS, SECONDS, CONNECTIONS = 7, 3.0, 16
LATENCY_SECONDS = 6.0
JOBS, CLIENTS = 2_000, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["status", "training", "submit"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nml-bench-") as folder:
        {"status": status, "training": training, "submit": submit}[options.part](Path(folder))


def status(folder: Path) -> None:
    """Answers per second of the status of a running job and of the bare route, in turns."""
    with serving(folder / "home") as service, bare_route() as bare:
        job = f"{service.url}/v1/jobs/{running_job(service)}"
        ask(job, 1.0), ask(bare, 1.0)  # warm both
        ratios = []
        for _ in range(ROUNDS):
            ours, theirs = ask(job, SECONDS)["per_second"], ask(bare, SECONDS)["per_second"]
            ratios.append(ours / theirs)
            print(f"status {ours:7.0f}/s   bare route {theirs:7.0f}/s   ratio {ratios[-1]:.2f}")
    print(f"status over bare route, median of {ROUNDS}: {statistics.median(ratios):.2f}")


def training(folder: Path) -> None:
    """Latency at 50 requests a second, idle and with a training job on every core; both routes in turns.

    One stall of the machine delays a hundredth of a round's requests, so that each round has its own p99.
    """
    cores = os.cpu_count() or 1
    with serving(folder / "home", concurrency=cores) as service, bare_route() as bare:
        places = {"status": f"{service.url}/v1/jobs/{running_job(service)}", "bare route": bare}
        show_latencies(places, "idle")
        with service.client() as client:
            jobs = [client.submit(small_spec(epochs=100_000)) for _ in range(cores)]
            wait_for(lambda: all(client.job(job.id).document["progress"].get("epoch") for job in jobs), 120)
            show_latencies(places, f"{cores} jobs training")
            for job in jobs:
                client.cancel(job)


def show_latencies(places: dict[str, str], state: str) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in places}
    for _ in range(ROUNDS):
        for name, url in places.items():
            found[name].append(ask(url, LATENCY_SECONDS, rate=50))
    for name, rounds in found.items():
        p50, p99 = (sorted(one[share] for one in rounds) for share in ("p50", "p99"))
        middle = f"p50 {statistics.median(p50):5.1f} ms   p99 {statistics.median(p99):5.1f} ms"
        print(f"{name:10s} {state:15s} {middle} (median of {ROUNDS} rounds; p99 from {p99[0]:.1f} to {p99[-1]:.1f})")
    ratio = statistics.median(ours["p99"] / bare["p99"] for ours, bare in zip(*found.values(), strict=True))
    print(f"p99 {state}, status over bare route, median of {ROUNDS}: {ratio:.2f}")


def submit(folder: Path) -> None:
    """Every client submits its share, each job under a name of its own; then all names must be there once."""
    spec = small_spec(epochs=1)
    with serving(folder / "home") as service:
        took = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            ids = [found for part in pool.map(lambda at: share(service, spec, at), range(CLIENTS)) for found in part]
        took = time.perf_counter() - took
        with service.client() as client:
            names = Counter(str(job.name) for job in client.jobs(state="queued"))
    lost, doubled = JOBS - len(names), sum(count > 1 for count in names.values())
    print(f"{len(ids)} jobs by {CLIENTS} clients in {took:.1f} s: {lost} lost, {doubled} doubled")
    assert (len(set(ids)), lost, doubled) == (JOBS, 0, 0)


def share(service: Service, spec: dict[str, Any], at: int) -> list[str]:
    with service.client() as client:
        return [client.submit(spec, name=f"job {number}").id for number in range(at, JOBS, CLIENTS)]


@contextmanager
def serving(home: Path, **settings: Any) -> Iterator[Service]:
    role = "all" if "concurrency" in settings else "api"
    service = Service(home, role=role, rate_per_second=1e6, **{"rate_burst": 10**6, **settings})
    make_running_job(service)
    service.start()
    try:
        wait_for(lambda: service.answers("/livez" if role == "api" else "/readyz"), 90, service.last_words)
        yield service
    finally:
        service.end()


@contextmanager
def bare_route() -> Iterator[str]:
    """The bare route under the same server with the same options; its address."""
    port = free_port()
    options = ["--factory", "--port", str(port), "--no-access-log", "--log-level", "warning", "--no-server-header"]
    command = [sys.executable, "-m", "uvicorn", "tests.benchmarks.bare_route:create_app", *options]
    server = subprocess.Popen(command, cwd=ROOT)
    url = f"http://127.0.0.1:{port}/"
    try:
        wait_for(lambda: _answers(url), 60)
        yield url
    finally:
        server.terminate()
        server.wait()


def make_running_job(service: Service) -> None:
    """A job as it is looked at most: under way, with progress and figures. Nobody works on it, nobody takes it over."""
    store = open_store(service.settings)
    spec = parse_spec(small_spec()).model_dump(mode="json")
    store.jobs.submit(NewJob("train", spec, "0" * 64, "digits", name="running"))
    claimed = store.claims.claim("benchmark", kinds=("train",), lease_seconds=86_400)
    assert claimed is not None
    progress = {"phase": "train", "epoch": 12, "epochs": 40, "share": 0.3, "epochs_per_second": 7.5, "eta_seconds": 3.7}
    figures = {"loss": 6.1, "nml": 6.0, "kl": 0.03, "seconds": 0.13, "rss_mb": 412.0}
    store.claims.record(Claim.on(claimed), progress=progress, metrics=figures)
    store.close()


def running_job(service: Service) -> str:
    with service.client() as client:
        (job,) = client.jobs(state="running")
    return job.id


def ask(url: str, seconds: float, **options: Any) -> dict[str, Any]:
    """What the load generator found, given these options of it; anything but 200 is an error."""
    script = Path(__file__).with_name("http_load.py")
    command = [sys.executable, str(script), url, "--seconds", str(seconds), "--connections", str(CONNECTIONS)]
    command += [f"--{name}={value}" for name, value in options.items()]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["statuses"].keys() == {"200"}, found
    return found


def _answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    main()
