"""One cluster for each module of tests, a key to it, and a client on the outsider's side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.client import Client
from tests.cluster.runtime.cluster import Cluster, running_cluster, what_is_missing
from tests.cluster.runtime.network import inside

_RUNNING = pytest.StashKey[Cluster]()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Everything of docker-compose.yml, with two Ray workers."""
    if reason := what_is_missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cluster")
    variables = {"RAY_WORKER_CPUS": "2", "RAY_WORKER_MEMORY_BYTES": "4000000000", "NML_MEMORY_LIMIT": "2GB"}
    with running_cluster(folder, {"ray-worker": 2}, variables) as found:
        request.config.stash[_RUNNING] = found
        yield found


@pytest.fixture(scope="module")
def key(cluster: Cluster) -> str:
    """Made as the README says: `docker compose exec api nml keys create`."""
    made = cluster["api"].execute(["nml", "keys", "create", "tests", "--scope=admin"])
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture
def client(cluster: Cluster, key: str) -> Iterator[Client]:
    """The whole test runs on the outsider's host."""
    with inside(cluster.outsider), Client(cluster.url(), key, patience=180.0) as found:
        yield found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows the end of every container's log."""
    report = yield
    if report.failed and (cluster := item.config.stash.get(_RUNNING, None)) is not None:
        report.sections.append(("containers", cluster.last_words()))
    return report
