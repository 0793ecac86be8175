"""What somebody sees who is not one of us: from outside one port, from inside doors with locks."""

from __future__ import annotations

import json

import httpx
import psycopg
import pytest

from tests.cluster.runtime.cluster import Cluster
from tests.cluster.runtime.network import inside, ip
from tests.cluster.runtime.ports import open_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
WRONG = "0123456789abcdef" * 3


def test_only_the_published_port_answers_outside(cluster: Cluster) -> None:
    api = cluster["api"].host
    ip("-n", cluster.outsider.namespace, "route", "add", f"{cluster.fabric.subnets['internal']}.0/24", "via",
       api.addresses["public"])  # fmt: skip
    addresses = {address for each in cluster.containers.values() for address in each.host.addresses.values()}
    with inside(cluster.outsider):
        answered = {address: open_ports(address) for address in sorted(addresses)}
    assert {address: ports for address, ports in answered.items() if ports} == {
        api.addresses["public"]: {8000},
        api.addresses["internal"]: {8000},  # the same process, by its other address
    }


def test_the_search_for_ports_finds_those_that_are_open_inside(cluster: Cluster) -> None:
    """Else silence outside would mean nothing."""
    doors = {"postgres": {5432}, "mlflow": {5000}, "encoder": {8100}, "ray-head": {6379, 8265}}
    with inside(cluster["dispatcher"].host):
        for name, ports in doors.items():
            assert ports <= open_ports(cluster[name].host.address), name


@pytest.mark.parametrize("headers", [{}, {"Authorization": f"Bearer {WRONG}"}], ids=["no token", "a wrong token"])
@pytest.mark.parametrize("path", ["/api/jobs/", "/api/v0/nodes", "/api/cluster_status", "/api/version", "/nodes"])
def test_rays_dashboard_wants_its_token(cluster: Cluster, path: str, headers: dict[str, str]) -> None:
    url = f"http://{cluster['ray-head'].host.address}:8265{path}"
    with inside(cluster["api"].host):
        assert httpx.get(url, headers=headers, timeout=30).status_code in (401, 403)
        right = {"Authorization": f"Bearer {cluster.variables['RAY_AUTH_TOKEN']}"}
        assert httpx.get(url, headers=right, timeout=30).status_code not in (401, 403)


def test_nobody_submits_to_ray_without_its_token(cluster: Cluster) -> None:
    url = f"http://{cluster['ray-head'].host.address}:8265/api/jobs/"
    with inside(cluster["mlflow"].host):
        answer = httpx.post(url, json={"entrypoint": "id"}, timeout=30)
    assert answer.status_code in (401, 403), answer.text


@pytest.mark.parametrize(
    "command",
    [
        ["status", "--address=ray-head:6379"],
        ["list", "nodes", "--address=ray-head:6379"],
        ["job", "list", "--address=http://ray-head:8265"],
    ],
    ids=" ".join,
)
def test_rays_own_commands_fail_with_a_wrong_token(cluster: Cluster, command: list[str]) -> None:
    """GCS speaks gRPC, which Ray's own client knows best; the encoder's container has it and may not use it."""
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": WRONG}
    refused = cluster["encoder"].execute(["ray", *command], environment=given, seconds=90)
    assert refused.returncode != 0, refused.stdout
    assert "10.77." not in refused.stdout
    right = given | {"RAY_AUTH_TOKEN": cluster.variables["RAY_AUTH_TOKEN"]}
    allowed = cluster["encoder"].execute(["ray", *command], environment=right, seconds=90)
    assert allowed.returncode == 0, allowed.stderr


def test_mlflow_wants_its_password(cluster: Cluster) -> None:
    url = f"http://{cluster['mlflow'].host.address}:5000"
    paths = ("/", "/api/2.0/mlflow/experiments/search?max_results=5", "/api/2.0/mlflow-artifacts/artifacts")
    with inside(cluster["api"].host), httpx.Client(headers={"Host": "mlflow:5000"}, timeout=60) as client:
        for path in paths:
            for auth in (None, ("nml", WRONG), ("admin", "password1234"), ("admin", "password")):
                answer = client.get(url + path, auth=auth)
                assert answer.status_code == 401, (path, auth, answer.text)
        assert client.get(url + paths[1], auth=("nml", cluster.variables["MLFLOW_PASSWORD"])).status_code == 200


def test_the_encoder_wants_its_token(cluster: Cluster) -> None:
    check = ["python", "-P", "-m", "service.encoder", f"--check={cluster['encoder'].host.address}:8100"]
    refused = cluster["dispatcher"].execute(check, environment={"NML_ENCODER_TOKEN": WRONG})
    assert refused.returncode != 0
    allowed = cluster["encoder"].execute(check)
    assert allowed.returncode == 0, allowed.stderr


def test_postgresql_wants_the_right_password_for_the_right_database(cluster: Cluster) -> None:
    def connect(user: str, password: str, database: str) -> None:
        psycopg.connect(
            host=cluster["postgres"].host.address, user=user, password=password, dbname=database, connect_timeout=10
        ).close()

    variables = cluster.variables
    with inside(cluster["ray-worker-1"].host):
        connect("nml", variables["NML_DATABASE_PASSWORD"], "nml")
        connect("mlflow", variables["MLFLOW_DATABASE_PASSWORD"], "mlflow")
        for user, password, database in (
            ("nml", WRONG, "nml"), ("mlflow", WRONG, "mlflow"), ("postgres", WRONG, "postgres"), ("nml", "", "nml"),
            ("nml", variables["NML_DATABASE_PASSWORD"], "mlflow"),
            ("nml", variables["NML_DATABASE_PASSWORD"], "postgres"),
            ("mlflow", variables["MLFLOW_DATABASE_PASSWORD"], "nml"),
        ):  # fmt: skip
            with pytest.raises(psycopg.OperationalError):
                connect(user, password, database)


def test_jobs_and_neighbours_do_not_learn_the_secrets_of_others(cluster: Cluster) -> None:
    """Each container's environment has the secrets that it uses, and no others."""
    may = {
        "postgres": {"POSTGRES_PASSWORD", "NML_DATABASE_PASSWORD", "MLFLOW_DATABASE_PASSWORD"},
        "mlflow": {"MLFLOW_DATABASE_PASSWORD", "MLFLOW_PASSWORD", "MLFLOW_FLASK_SERVER_SECRET_KEY"},
        "api": {"NML_DATABASE_PASSWORD", "NML_ENCODER_TOKEN"},
        "dispatcher": {"NML_DATABASE_PASSWORD", "RAY_AUTH_TOKEN", "MLFLOW_PASSWORD"},
        "encoder": {"NML_ENCODER_TOKEN"},
        "ray-head": {"RAY_AUTH_TOKEN"}, "ray-worker-1": {"RAY_AUTH_TOKEN"}, "ray-worker-2": {"RAY_AUTH_TOKEN"},
    }  # fmt: skip
    for name, container in cluster.containers.items():
        text = json.dumps(dict(container.service.environment))
        found = {secret for secret, value in cluster.variables.items() if len(value) >= 32 and value in text}
        assert found == may[name], name
