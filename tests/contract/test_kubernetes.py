"""docker/k8s can be applied: it fits the schemas, names only what exists, runs what compose runs, and lets nobody in.

No cluster is needed: kubernetes-validate brings the schemas of Kubernetes. KubeRay's objects are checked where they are
made of those (pod templates, a Service, containers), and by name for the rest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import kubernetes_validate
import psycopg
import pytest
import yaml

from service.settings import Settings
from tests.contract.manifests import (
    OUTSIDE,
    Document,
    Network,
    Pod,
    compose_command,
    matches,
    pods,
    render,
    size,
)
from tests.postgres import MISSING, MISSING_REASON, running

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "docker" / "k8s"
KUBERNETES = "1.37"
SECRET = "nml-secrets"
FOLDERS = {"plain": K8S, "gpu": K8S / "overlays" / "gpu"}
# Of KubeRay 1.5's RayCluster, what we use (helm-chart/kuberay-operator/crds/ray.io_rayclusters.yaml); `...`: checked
# against the schema of Kubernetes that it embeds.
RAY_CLUSTER: Document = {
    "rayVersion": str, "enableInTreeAutoscaling": bool,
    "autoscalerOptions": {
        "upscalingMode": ("Default", "Aggressive", "Conservative"), "idleTimeoutSeconds": int,
        "env": ..., "resources": ..., "securityContext": ..., "volumeMounts": ...,
    },
    "headGroupSpec": {"headService": ..., "rayStartParams": dict, "template": ...},
    "workerGroupSpecs": [
        {
            "groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, "rayStartParams": dict,
            "template": ...,
        }
    ],
}  # fmt: skip
# KubeRay adds these to the options of `ray start` by itself.
BY_KUBERAY = {"--head", "--block", "--address=ray-head:6379"}


@pytest.fixture(scope="module", params=FOLDERS)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    return render(FOLDERS[request.param])


@pytest.fixture(scope="module")
def compose() -> Document:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def of(documents: list[Document], kind: str) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def ray_cluster(documents: list[Document]) -> Document:
    (found,) = of(documents, "RayCluster").values()
    return found


def variables(pod: Pod, documents: list[Document]) -> dict[str, str | None]:
    """The container's environment; none: from the secret."""
    maps, found = of(documents, "ConfigMap"), {}
    for source in pod.container.get("envFrom", ()):
        found.update(maps[source["configMapRef"]["name"]]["data"])
    for entry in pod.container.get("env", ()):
        found[entry["name"]] = entry.get("value")
    return found


def secret_keys(thing: Any) -> set[tuple[str, str]]:
    """Every (secret, key) that something refers to, however deep."""
    if isinstance(thing, dict):
        own = {(thing["secretKeyRef"]["name"], thing["secretKeyRef"]["key"])} if "secretKeyRef" in thing else set()
        return own.union(*map(secret_keys, thing.values()))
    return set().union(*map(secret_keys, thing)) if isinstance(thing, list) else set()


def check_core(document: Document) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_every_object_fits_the_schema_of_kubernetes(documents):
    core = [one for one in documents if one["apiVersion"] != "ray.io/v1"]
    assert len(core) == len(documents) - 1
    for document in core:
        check_core(document)


def test_schema_check_can_fail(documents):
    deployment = next(iter(of(documents, "Deployment").values()))
    with pytest.raises(kubernetes_validate.ValidationError):
        check_core({**deployment, "spec": {**deployment["spec"], "replica": 2}})


def test_ray_cluster_fits_what_kuberay_defines(documents):
    cluster = ray_cluster(documents)
    assert (cluster["apiVersion"], set(cluster)) == ("ray.io/v1", {"apiVersion", "kind", "metadata", "spec"})

    def check(found: Any, wanted: Any, place: str) -> None:
        if wanted is ...:
            return
        if isinstance(wanted, dict):
            assert set(found) <= set(wanted), f"{place}: KubeRay has no {set(found) - set(wanted)}"
            for name, value in found.items():
                check(value, wanted[name], f"{place}.{name}")
        elif isinstance(wanted, list):
            for number, value in enumerate(found):
                check(value, wanted[0], f"{place}[{number}]")
        elif isinstance(wanted, tuple):
            assert found in wanted, place
        else:
            assert type(found) is wanted, place

    check(cluster["spec"], RAY_CLUSTER, "spec")
    head, workers = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    for group in (head, *workers):
        assert all(type(value) is str for value in group["rayStartParams"].values())
        deployment = {
            "selector": {"matchLabels": group["template"]["metadata"]["labels"]},
            "template": group["template"],
        }
        check_core({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": deployment})
    check_core({"apiVersion": "v1", "kind": "Service", **head["headService"]})
    options = cluster["spec"]["autoscalerOptions"]
    container = {name: options[name] for name in ("env", "resources", "securityContext", "volumeMounts")}
    pod = {"containers": [{"name": "autoscaler", "image": "x", **container}]}
    check_core({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})
    for group in workers:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert group["minReplicas"] < group["maxReplicas"]  # there is something to scale
    assert len({group["groupName"] for group in workers}) == len(workers)


def _kubectl_missing() -> bool:
    return shutil.which("kubectl") is None


@pytest.mark.skipif(_kubectl_missing(), reason="the `kubectl` command is not installed")
@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_kubectl_renders_what_these_tests_read(folder, tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": os.devnull}
    run = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr

    def order(document: Document) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    assert sorted(yaml.safe_load_all(run.stdout), key=order) == sorted(render(folder), key=order)


def test_all_is_in_one_namespace_that_refuses_privileges(documents):
    ((name, namespace),) = of(documents, "Namespace").items()
    assert {one["metadata"].get("namespace", name) for one in documents} == {name}
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_what_is_referred_to_exists(documents):
    maps, claims, accounts = (
        set(of(documents, kind)) for kind in ("ConfigMap", "PersistentVolumeClaim", "ServiceAccount")
    )
    for pod in pods(documents):
        for source in pod.container.get("envFrom", ()):
            assert source["configMapRef"]["name"] in maps, pod.owner
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        assert {mount["name"] for mount in pod.container["volumeMounts"]} == set(volumes), pod.owner
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v
        } <= claims
        if pod.component == "ray-head":  # KubeRay makes it one, for the autoscaler
            assert "serviceAccountName" not in pod.spec
        else:
            assert pod.spec["serviceAccountName"] in accounts
            assert pod.spec["automountServiceAccountToken"] is False
    mounts = ray_cluster(documents)["spec"]["autoscalerOptions"]["volumeMounts"]
    head = next(pod for pod in pods(documents) if pod.component == "ray-head")
    assert {mount["name"] for mount in mounts} <= {volume["name"] for volume in head.spec["volumes"]}


def test_secrets_are_referred_to_by_the_names_of_the_example(documents):
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    names = {line.partition("=")[0] for line in lines if re.match(r"[A-Z]", line)}
    used = secret_keys(documents)
    assert {secret for secret, _ in used} == {SECRET}
    assert {key for _, key in used} == names - {"POSTGRES_PASSWORD"}  # that one is the database's own
    assert not of(documents, "Secret")
    for pod in pods(documents):
        for name, value in variables(pod, documents).items():
            if re.search(r"PASSWORD|TOKEN|SECRET|_KEY$", name):
                assert value is None, f"{pod.owner}: {name} must come from {SECRET}"
    for one in of(documents, "ConfigMap").values():
        assert not re.search(r"://[^/\s@]*:[^/\s@]*@", yaml.safe_dump(one["data"]))


def test_selectors_find_their_pods_and_ports(documents):
    templates = list(pods(documents))
    for kind in ("Deployment", "PodDisruptionBudget"):
        for name, one in of(documents, kind).items():
            found = [pod.owner for pod in templates if matches(one["spec"]["selector"], pod.labels)]
            assert found == [f"Deployment/{name}"]
    services = of(documents, "Service")
    assert set(services) == {"api", "encoder", "mlflow"}
    for name, service in services.items():
        (pod,) = (pod for pod in templates if matches({"matchLabels": service["spec"]["selector"]}, pod.labels))
        assert pod.component == name
        ports = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
        assert service["spec"].get("type", "ClusterIP") == "ClusterIP"
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


def test_every_container_is_probed_limited_and_denied_what_it_does_not_need(documents):
    head = ray_cluster(documents)["spec"]
    for pod in pods(documents):
        one = pod.container
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(one), pod.owner
        user = pod.spec["securityContext"]
        assert (user["runAsNonRoot"], user["runAsUser"], user["runAsGroup"]) == (True, 10001, 10001)
        assert user["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.spec["enableServiceLinks"] is False, pod.owner  # MLFLOW_PORT=tcp://… is not what mlflow expects
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        places = {mount["mountPath"]: volumes[mount["name"]] for mount in one["volumeMounts"]}
        assert "sizeLimit" in places["/tmp"]["emptyDir"]
        if pod.component.startswith("ray"):
            assert places["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    for one in [*(pod.container for pod in pods(documents)), head["autoscalerOptions"]]:
        denied = one["securityContext"]
        assert (denied["readOnlyRootFilesystem"], denied["allowPrivilegeEscalation"]) == (True, False)
        assert denied["capabilities"] == {"drop": ["ALL"]}
        for part in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(one["resources"][part])


def test_images_are_those_of_compose_with_their_version(documents, compose):
    images = {one.get("image") for one in compose["services"].values()}
    for pod in pods(documents):
        assert pod.container["image"] in images
        assert re.fullmatch(r"[a-z-]+:\d+\.\d+\.\d+(-gpu)?", pod.container["image"])


def test_deployments_run_what_compose_runs(documents, compose):
    deployments = [pod for pod in pods(documents) if pod.owner.startswith("Deployment")]
    assert {pod.component for pod in deployments} == {"api", "dispatcher", "encoder", "mlflow"}
    for pod in deployments:
        assert pod.container["command"] == compose_command(ROOT, compose, pod.component)
        assert "args" not in pod.container
    for name in ("dispatcher", "encoder"):
        (pod,) = (pod for pod in deployments if pod.component == name)
        _, *words = compose["services"][name]["healthcheck"]["test"]
        assert pod.container["livenessProbe"]["exec"]["command"] == words


def test_ray_starts_with_the_options_of_compose(documents, compose):
    spec = ray_cluster(documents)["spec"]
    services = {"cpu": "ray-worker", "gpu": "ray-worker-gpu"}
    groups = [("ray-head", spec["headGroupSpec"]), *((services[g["groupName"]], g) for g in spec["workerGroupSpecs"])]
    for service, group in groups:
        ours = {f"--{k}" if v == "true" else f"--{k}={v}" for k, v in group["rayStartParams"].items()}
        ray, start, *options = compose_command(ROOT, compose, service)
        assert (ray, start) == ("ray", "start")
        assert ours == set(options) - BY_KUBERAY, service
        (pod,) = (Pod(service, group["template"]),)
        gpus = pod.container["resources"]["limits"].get("nvidia.com/gpu", 0)
        assert int(group["rayStartParams"]["num-gpus"]) == gpus
        shm = next(volume for volume in pod.spec["volumes"] if volume["name"] == "shm")
        taken = int(group["rayStartParams"]["object-store-memory"])
        assert taken <= size(shm["emptyDir"]["sizeLimit"])
        assert int(group["rayStartParams"].get("memory", 0)) + taken < size(
            pod.container["resources"]["limits"]["memory"]
        )
    assert spec["headGroupSpec"]["headService"]["metadata"]["name"] == "ray-head"
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"\nray=={spec['rayVersion']}\n" in constraints


def test_settings_are_taken_by_the_service_and_lead_to_services(documents, compose, monkeypatch):
    reachable = {name: one["spec"]["ports"][0]["port"] for name, one in of(documents, "Service").items()}
    reachable["ray-head"] = 8265
    workers = ray_cluster(documents)["spec"]["workerGroupSpecs"]
    for name in [name for name in os.environ if name.startswith(("NML_", "MLFLOW_", "PG"))]:
        monkeypatch.delenv(name)
    for pod in pods(documents):
        if pod.component not in ("api", "dispatcher"):
            continue
        ours = variables(pod, documents)
        theirs = compose["services"][pod.component]["environment"]
        needed = {name for name, value in theirs.items() if not str(value).endswith(":-}")}
        assert needed - set(ours) == set()
        assert {name for name in ours if name.startswith("NML_")} <= {
            f"NML_{one.upper()}" for one in Settings.model_fields
        }
        with monkeypatch.context() as patch:
            for name, value in ours.items():
                patch.setenv(name, value or "a-secret-of-the-right-length-01")
            settings = Settings()
        assert settings.runner == "ray"
        addresses = [settings.ray_jobs_url, settings.mlflow_uri]
        addresses += [f"tcp://{settings.encoder_address}"] if pod.component == "api" else []
        for address in addresses:
            host, _, port = address.rpartition("//")[2].partition(":")
            assert reachable[host] == int(port)
        assert settings.memory_bytes <= min(int(group["rayStartParams"]["memory"]) for group in workers)
        assert settings.database == "postgresql+psycopg://nml@/nml"
        assert {"PGHOST", "PGPASSWORD"} <= set(ours)


@pytest.mark.skipif(MISSING, reason=MISSING_REASON)
def test_database_is_found_by_what_libpq_is_told(tmp_path):
    documents = render(K8S)
    (pod,) = (pod for pod in pods(documents) if pod.component == "dispatcher")
    told = {name: value or "a-secret-of-the-right-length-01" for name, value in variables(pod, documents).items()}
    with running() as database:
        with psycopg.connect(database.url(), autocommit=True) as connection:
            connection.execute("CREATE ROLE nml LOGIN")
            connection.execute("CREATE DATABASE nml OWNER nml")
        told |= {"PGHOST": "127.0.0.1", "PGPORT": str(database.port), "PGSSLMODE": "disable", "NML_HOME": str(tmp_path)}
        code = (
            "from service.settings import Settings; from service.store import open_store; settings = Settings();"
            "open_store(settings).dispatchers.beat('one', host='here', pid=1, info={})"
        )
        environment = {"PATH": os.environ["PATH"], **told}
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True)
        with psycopg.connect(database.url("nml")) as connection:
            assert connection.execute("SELECT host FROM dispatchers").fetchall() == [("here",)]


def test_an_api_pod_is_replaced_without_a_gap(documents):
    api = of(documents, "Deployment")["api"]["spec"]
    assert api["replicas"] >= 2
    assert api["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    pod = api["template"]["spec"]
    (container,) = pod["containers"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    from service.serve_api import GRACEFUL_SECONDS

    assert pause + GRACEFUL_SECONDS + 5 <= pod["terminationGracePeriodSeconds"]
    # /readyz would take every pod out of the Service while no dispatcher is alive
    assert container["readinessProbe"]["httpGet"]["path"] == "/livez"
    assert of(documents, "Deployment")["mlflow"]["spec"]["strategy"] == {"type": "Recreate"}
    claims = of(documents, "PersistentVolumeClaim")
    assert claims["data"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_network_lets_the_known_connections_through_and_no_others(documents):
    labels = {pod.component: pod.labels for pod in pods(documents)}
    ray = ("ray-head", "ray-worker")
    ports = (80, 443, 5000, 5432, 6379, 6443, 8000, 8100, 8265, 10001, 52365)
    wanted = {(OUTSIDE, "api", 8000), ("api", "encoder", 8100), ("dispatcher", "ray-head", 8265)}
    wanted |= {(one, "mlflow", 5000) for one in ("dispatcher", *ray)}
    wanted |= {(one, other, port) for one in ray for other in ray for port in ports}
    wanted |= {(one, OUTSIDE, 5432) for one in ("api", "dispatcher", "mlflow")}  # PostgreSQL
    wanted |= {("ray-head", OUTSIDE, port) for port in (443, 6443)}  # Kubernetes, which the autoscaler asks for workers
    network, places = Network(documents, labels), (*labels, OUTSIDE)
    found = {
        (source, target, port)
        for source, target, port in product(places, places, ports)
        if (source, target) != (OUTSIDE, OUTSIDE) and network.allows(source, target, port)
    }
    assert found == wanted
    without = [one for one in documents if one["metadata"]["name"] != "deny-all"]
    assert Network(without, labels).allows(OUTSIDE, "dispatcher", 22)  # so the rule that denies is needed
