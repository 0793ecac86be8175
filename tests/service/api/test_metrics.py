"""Several API processes count together: whichever is asked tells of all, and a killed one takes no count with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from fastapi.routing import iter_route_contexts
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from service.api.edge import multiprocess_metrics
from service.api.edge.metrics import METHODS, RequestMetrics, ServiceStatus, exposition
from service.api.edge.multiprocess_metrics import shared_folder
from service.app import create_app
from service.settings import Settings
from tests.service.api.server import SMALL, Live
from tests.service.dispatch.test_supervisor import ROOT, Service, _words

# Counts as many requests as each line of its input says, and answers with what it would tell Prometheus.
COUNTING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from service.api.edge.multiprocess_metrics import join
assert join(Path(sys.argv[1]), int(sys.argv[2]))
from service.api.edge.metrics import RequestMetrics, ServiceStatus, exposition
metrics, route = RequestMetrics(Path(sys.argv[1])), SimpleNamespace(path="/v1/jobs")
for line in sys.stdin:
    for _ in range(int(line)):
        metrics.observe(route, "GET", 200, 0.01)
        metrics.refused.inc()
    metrics.watchers.set(int(line))
    sys.stdout.buffer.write(exposition(metrics, ServiceStatus("1")) + b"# EOF\\n")
    sys.stdout.flush()
"""
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]
SERIES = "nml_http_request_seconds_count", (("method", "GET"), ("route", "/v1/jobs"), ("status", "2xx"))


def values(text: str) -> Values:
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


class Counter:
    def __init__(self, folder: Path, slot: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COUNTING, str(folder), str(slot)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            cwd=ROOT, text=True,
        )  # fmt: skip

    def count(self, number: int) -> Values:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(number, file=self.process.stdin, flush=True)
        return values("".join(iter(self.process.stdout.readline, "# EOF\n")))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def counters(folder: Path) -> Iterator[list[Counter]]:
    started = [Counter(folder, 1), Counter(folder, 2)]
    try:
        yield started
    finally:
        for one in started:
            one.kill()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(multiprocess_metrics.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_each_process_tells_of_all_also_after_one_was_killed_and_replaced(place: Path) -> None:
    with shared_folder(2) as folder:
        assert folder is not None
        with counters(folder) as (first, second):
            first.count(3)
            found = second.count(4)
            assert found[SERIES] == 7
            assert found["nml_http_request_seconds_sum", SERIES[1]] == pytest.approx(0.07)
            assert found["nml_http_rate_limited_total", ()] == 7
            assert found["nml_event_watchers", ()] == 7
            for slot, process in (("1", first.process), ("2", second.process)):
                start = found["process_start_time_seconds", (("process", slot),)]
                assert start == pytest.approx(psutil.Process(process.pid).create_time(), abs=2)
            first.kill()
            found = second.count(0)
            assert found[SERIES] == 7
            assert ("process_resident_memory_bytes", (("process", "1"),)) not in found
            replaced = Counter(folder, 1)
            try:
                found = replaced.count(1)
            finally:
                replaced.kill()
            assert found[SERIES] == 8
            assert found["nml_event_watchers", ()] == 1  # those who watched with the one that was killed are gone
            assert second.count(5)[SERIES] == 13
            assert len(list(folder.glob("*.db"))) == 6  # not more with every process
    assert not list(place.iterdir())


def test_one_process_alone_and_several_together_tell_the_same_names(place: Path) -> None:
    alone = RequestMetrics()
    alone.refused.inc()
    alone.observe(type("Route", (), {"path": "/v1/jobs"}), "GET", 200, 0.01)
    with shared_folder(1) as folder:
        assert folder is not None
        counter = Counter(folder, 1)
        try:
            found = counter.count(1)
        finally:
            counter.kill()
    assert values(exposition(alone, ServiceStatus("1")).decode()).keys() == found.keys()


def test_disk_version_and_processes_are_told(live: Live) -> None:
    found = values(live.http.get("/metrics").text)
    assert found["nml_disk_free_bytes", ()] == pytest.approx(shutil.disk_usage(live.settings.home).free, rel=0.2)
    assert found["nml_build_info", (("version", live.app.version),)] == 1
    own = psutil.Process()
    assert found["process_resident_memory_bytes", (("process", "1"),)] == pytest.approx(own.memory_info().rss, rel=0.5)
    assert found["process_start_time_seconds", (("process", "1"),)] == pytest.approx(own.create_time(), abs=2)


def test_methods_that_clients_make_up_are_one_series() -> None:
    metrics, route = RequestMetrics(), type("Route", (), {"path": "/v1/jobs"})
    for number in range(50):
        metrics.observe(route, f"M{number}", 405, 0.01)
    found = values(exposition(metrics, ServiceStatus("1")).decode())
    counts = {labels: value for (name, labels), value in found.items() if name == SERIES[0]}
    assert counts == {(("method", "other"), ("route", "/v1/jobs"), ("status", "4xx")): 50}


def test_room_that_is_reserved_holds_every_series_there_can_be(place: Path, tmp_path: Path) -> None:
    """A file that had to grow on a full disk would end the process with SIGBUS."""
    app = create_app(Settings(home=tmp_path / "home"))
    possible = set()
    for route in iter_route_contexts(app.routes):
        possible |= {(route.path, method, 400) for method in (*METHODS, "ODD")}  # refused, by whatever method
        possible |= {(route.path, method, 100 * status) for method in (*route.methods, "HEAD") for status in (2, 3, 5)}
    assert len(possible) > 500
    code = (
        "import json, sys; from pathlib import Path; from types import SimpleNamespace as Route;"
        "from service.api.edge.multiprocess_metrics import join; join(Path(sys.argv[1]), 1);"
        "from service.api.edge.metrics import RequestMetrics; metrics = RequestMetrics(Path(sys.argv[1]));"
        "[metrics.observe(Route(path=path), method, status, 1.0) for path, method, status in json.load(sys.stdin)]"
    )
    with shared_folder(1) as folder:
        assert folder is not None
        file = folder / "histogram_1.db"
        size = file.stat().st_size
        assert file.stat().st_blocks * 512 >= size  # taken, not only promised
        command = [sys.executable, "-c", code, str(folder)]
        subprocess.run(command, cwd=ROOT, input=json.dumps(sorted(possible)), text=True, check=True)
        (family,) = MultiProcessCollector.merge([str(file)])
        assert sum(sample.name.endswith("_count") for sample in family.samples) == len(possible)
        assert file.stat().st_size == size


def test_without_room_each_process_counts_for_itself(tmp_path: Path) -> None:
    """No file may be larger than 1 kB here, which the kernel sees to."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "from service.api.edge.multiprocess_metrics import shared_folder;\n"
        "with shared_folder(2) as folder: print(folder)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "None\n"
    assert "no room to share" in run.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_tidied_away_costs_only_the_others_counts(place: Path) -> None:
    with shared_folder(2) as folder:
        assert folder is not None
        with counters(folder) as (first, _):
            first.count(3)
            folder.rename(place / "tidied")  # in one step: its counters are being written
            assert first.count(1)[SERIES] == 4
        assert not multiprocess_metrics.join(folder, 1)


def test_folders_of_killed_supervisors_are_removed_and_those_of_living_ones_kept(place: Path) -> None:
    code = (
        "import time; from service.api.edge.multiprocess_metrics import shared_folder;\n"
        "with shared_folder(1) as folder: print(folder, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    environment = os.environ | {"TMPDIR": str(place)}
    started = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        living, dead = (Path(one.stdout.readline().strip()) for one in started if one.stdout is not None)
        started[1].kill()
        started[1].wait()
        with shared_folder(1):
            assert dead.exists()  # it is young: its owner might be about to lock it
        long_ago = time.time() - 3600
        for folder in (living, dead):
            os.utime(folder, (long_ago, long_ago))
        with shared_folder(1):
            assert not dead.exists()
            assert (living / "histogram_1.db").exists()
    finally:
        for one in started:
            one.kill()
            one.communicate()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    """Two API processes behind one socket."""
    started = Service(
        Settings(home=tmp_path, port=0, api_workers=2, rate_per_second=1e6, rate_burst=10**6), ", role='api'"
    )
    yield started
    if started.process.poll() is None:
        started.process.terminate()
        started.process.wait(60)


@pytest.mark.slow
def test_every_scrape_of_two_processes_behind_one_socket_shows_all_requests(running: Service) -> None:
    url = f"http://{running.address()}"

    def api() -> list[psutil.Process]:
        return [one for one in running.family() if "service.serve_api" in _words(one)]

    def ask(path: str = "/v1/jobs") -> str:
        response = httpx.get(url + path, timeout=60)  # a connection each, so that either process may get it
        assert response.status_code == 200
        return response.text

    def several() -> int:
        """Requests at once, so that one process alone has not the time for all; how many."""
        with ThreadPoolExecutor(8) as pool:
            return len(list(pool.map(lambda _: ask(), range(16))))

    def scrapes(series: tuple[str, tuple[tuple[str, str], ...]]) -> set[float]:
        return {values(ask("/metrics"))[series] for _ in range(12)}

    def counted(slot: int) -> float:
        (family,) = MultiProcessCollector.merge([str(folder / f"histogram_{slot}.db")])
        return sum(one.value for one in family.samples if one.name == SERIES[0] and one.labels["route"] == "/v1/jobs")

    def wait(condition) -> None:
        until = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.1)

    wait(lambda: len(api()) == 2)
    folder = Path(_words(api()[0])[_words(api()[0]).index("--counts") + 1])
    wait(lambda: len(multiprocess_metrics.pids(folder)) == 2)
    number = 0
    while number < 50 or not (counted(1) and counted(2)):  # until both have answered some
        number += several()
        assert number < 5_000
    assert scrapes(SERIES) == {number}

    job = httpx.post(f"{url}/v1/jobs", json=SMALL, timeout=120).json()["id"]
    with httpx.Client(timeout=120, limits=httpx.Limits(max_keepalive_connections=0)) as http:
        streams = [http.send(http.build_request("GET", f"{url}/v1/jobs/{job}/events"), stream=True) for _ in range(5)]
        readers = [stream.iter_raw() for stream in streams]  # one that is dropped ends its stream
        assert all(next(reader) for reader in readers)
        assert scrapes(("nml_event_watchers", ())) == {5}
        for stream in streams:
            stream.close()
    wait(lambda: scrapes(("nml_event_watchers", ())) == {0})

    victim = multiprocess_metrics.pids(folder)["1"]
    psutil.Process(victim).kill()
    for _ in range(20):
        ask()
    assert scrapes(SERIES) == {number + 20}
    wait(lambda: multiprocess_metrics.pids(folder)["1"] != victim)
    before = counted(1)
    more = 0
    while counted(1) == before:  # the new one goes on where the other stopped
        more += several()
        assert more < 5_000
    assert scrapes(SERIES) == {number + 20 + more}
    running.process.terminate()
    running.process.wait(120)
    assert not folder.exists()
