"""Images, compose, the cluster tests and Kubernetes start the same words: a change in one place shows in all, or here.

tests/cluster reads compose and Dockerfiles with a reader of its own. What it would start is compared with the text of
the files, found here by other and cruder means.
"""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.runtime.compose_file import Service, build_of, needed_variables, read_compose
from tests.cluster.runtime.interpolation import interpolate

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
OWN = ("mlflow", "api", "dispatcher", "encoder", "ray-head", "ray-worker", "ray-worker-gpu")
SIZE = re.compile(r"--(num-cpus|num-gpus|memory|object-store-memory)=")
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?(?::\?[^}]*)?\}")


@pytest.fixture(scope="module")
def started() -> dict[str, Service]:
    """What the cluster tests would start."""
    return read_compose(COMPOSE, dict.fromkeys(needed_variables(COMPOSE), "secret"))


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


def image_lists(dockerfile: Path) -> dict[str, list[str]]:
    """The last ENTRYPOINT and CMD of a file, as JSON lists."""
    text = dockerfile.read_text(encoding="utf-8").replace("\\\n", " ")
    return {name: json.loads(words) for name, words in re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)}


def words_of(service: dict[str, Any], services: dict[str, Any]) -> list[str]:
    """Entrypoint of the image and command of compose, with the defaults of variables."""
    build = build_of(service, services)
    image = {} if build is None else image_lists(ROOT / build["dockerfile"])
    words = [*service.get("entrypoint", image.get("ENTRYPOINT", [])), *service.get("command", image.get("CMD", []))]
    return [VARIABLE.sub(lambda found: found[2] or "", word) for word in words]


@pytest.mark.parametrize("name", OWN)
def test_the_cluster_tests_start_what_image_and_compose_say(started, written, name):
    assert list(started[name].argv) == words_of(written[name], written)


def test_every_service_is_started_as_it_is_written(started, written):
    assert set(started) == set(written)
    assert list(started["postgres"].argv) == ["docker-entrypoint.sh", *written["postgres"]["command"]]
    for name in ("backup", "restore"):
        assert list(started[name].argv) == words_of(written[name], written)


@pytest.mark.parametrize(
    "name, dockerfile", [("api", "api"), ("mlflow", "mlflow")], ids=["the API's", "the MLflow server's"]
)
def test_an_image_by_itself_does_what_its_service_does(started, name, dockerfile):
    lists = image_lists(ROOT / "docker" / f"{dockerfile}.Dockerfile")
    assert lists["ENTRYPOINT"] + lists["CMD"] == list(started[name].argv)


def test_a_worker_image_by_itself_is_a_ray_worker(started):
    """Compose adds only how much of the machine it takes."""
    own = image_lists(ROOT / "docker" / "worker.Dockerfile")["CMD"]
    for name in ("ray-worker", "ray-worker-gpu"):
        sizes = {
            word for word in started[name].argv if re.match(r"--(num-cpus|num-gpus|memory|object-store-memory)=", word)
        }
        assert [word for word in started[name].argv if word not in sizes] == own


@pytest.mark.parametrize("name", OWN)
def test_environment_user_and_place_come_from_the_image_unless_compose_says_otherwise(started, written, name):
    text = (ROOT / build_of(written[name], written)["dockerfile"]).read_text(encoding="utf-8")
    service = started[name]
    assert service.user == written[name]["user"] == re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1]
    assert service.workdir == re.findall(r"^WORKDIR (\S+)$", text, re.MULTILINE)[-1]
    assert service.environment["PATH"].startswith("/opt/nml/bin:")
    for key, value in written[name].get("environment", {}).items():
        expected = VARIABLE.sub(lambda found: found[2] if found[2] is not None else "secret", str(value))
        if "${" not in str(value) or ":?" in str(value):
            assert service.environment[key] == expected, key


@pytest.mark.parametrize(
    "text, variables, expected",
    [
        ("a${X}b", {"X": "1"}, "a1b"), ("${X:-d}", {}, "d"), ("${X:-d}", {"X": ""}, "d"), ("${X-d}", {"X": ""}, ""),
        ("${X:-${Y:-z}}", {}, "z"), ("${X:+y}", {"X": "1"}, "y"), ("${X:+y}", {}, ""), ("$$X", {"X": "1"}, "$X"),
        ("$X/$Y", {"X": "1", "Y": "2"}, "1/2"),
    ],
)  # fmt: skip
def test_variables_are_filled_in_as_compose_does(text, variables, expected):
    assert interpolate({"a": [text]}, variables) == {"a": [expected]}


def test_a_missing_secret_is_named():
    names = set(needed_variables(COMPOSE)) - {"RAY_AUTH_TOKEN"}
    with pytest.raises(ValueError, match=r"RAY_AUTH_TOKEN.*make secrets"):
        read_compose(COMPOSE, dict.fromkeys(names, "secret"))


@pytest.mark.parametrize("name", ["api", "dispatcher", "encoder", "mlflow"])
def test_a_pod_starts_the_words_of_its_service(started, name):
    pods = dict(_containers(kubernetes("*.yaml")))
    assert pods[name] == list(started[name].argv)


@pytest.mark.parametrize(
    "name, group", [("ray-head", "headGroupSpec"), ("ray-worker", "workerGroupSpecs")], ids=["head", "worker"]
)
def test_kuberay_makes_of_its_parameters_the_words_of_the_service(started, name, group):
    """It writes `ray start` itself, with --head or --address and --block; a switch is "true"."""
    (cluster,) = [each for each in kubernetes("ray.yaml") if each["kind"] == "RayCluster"]
    spec = cluster["spec"][group]
    parameters = (spec if isinstance(spec, dict) else spec[0])["rayStartParams"]
    written = {f"--{key}" if value == "true" else f"--{key}={value}" for key, value in parameters.items()}
    others = {"ray", "start", "--block", "--head", "--address=ray-head:6379"}
    assert written == set(started[name].argv) - others


@pytest.mark.parametrize("name", ["api", "dispatcher", "encoder", "mlflow", "ray-head", "ray-worker"])
def test_a_pod_is_asked_what_its_service_is_asked(started, monkeypatch, name):
    """All of its probes together ask the questions of the health check, and no others."""
    (container,) = (one for one in _all_containers(kubernetes("*.yaml")) if one["name"] == name)
    numbers = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    asked: set[str | tuple[str, ...]] = set()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "exec" in container[probe]:
            asked.add(tuple(container[probe]["exec"]["command"]))
        else:
            get = container[probe]["httpGet"]
            asked.add(f"http://127.0.0.1:{numbers.get(get['port'], get['port'])}{get['path']}")
    health = started[name].health.argv
    assert asked == (requests_of(health, monkeypatch) or {health})


def test_the_head_is_unhealthy_without_cluster_or_without_a_node_of_its_own(started, monkeypatch):
    """Workers wait for its health: they need both."""
    health = started["ray-head"].health.argv
    requests = requests_of(health, monkeypatch)
    assert {url.rpartition("/")[2] for url in requests} == {"gcs_healthz", "local_raylet_healthz"}
    for silent in requests:
        with pytest.raises(ConnectionRefusedError):
            requests_of(health, monkeypatch, silent=silent)


def requests_of(argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, silent: str = "") -> set[str]:
    """The URLs that a health check in Python asks, while all but `silent` answer; none if it does something else."""
    if argv[:2] != ("python", "-c") or "urllib" not in argv[2]:
        return set()
    asked: set[str] = set()

    def answer(url: str, timeout: float) -> None:
        asked.add(url)
        if url == silent:
            raise ConnectionRefusedError(url)

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    exec(argv[2], {})  # ours: it stands in docker-compose.yml
    return asked


def kubernetes(pattern: str) -> list[dict[str, Any]]:
    files = sorted((ROOT / "docker" / "k8s" / "base").glob(pattern))
    return [each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8")) if each]


def _containers(node: Any) -> list[tuple[str, list[str]]]:
    """(name, words) of every container that has words of its own."""
    found = [(one["name"], [*one.get("command", []), *one.get("args", [])]) for one in _all_containers(node)]
    return [(name, words) for name, words in found if words]


def _all_containers(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [each for item in node for each in _all_containers(item)]
    if not isinstance(node, dict):
        return []
    return [each for item in node.values() for each in _all_containers(item)] + list(node.get("containers") or ())
