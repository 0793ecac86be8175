"""docker-compose.yml keeps what it promises: one door, no default passwords, nothing that a container does not need.

No container engine is needed to check that; where `docker compose` is installed it also reads the file itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.api.edge.hosts import Hosts
from service.api.problems import Problem
from service.settings import Settings
from tests.cluster.runtime.compose_file import build_of, interpolate
from tests.contract.dockerfile import last_stage

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONCE = {"backup", "restore"}  # do their work and end
LASTING = sorted(set(SERVICES) - ONCE)
BUILDS = {name: build_of(service, SERVICES) for name, service in SERVICES.items()}
OWN = sorted(name for name, build in BUILDS.items() if build is not None)
SECRET = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|_KEY$", re.IGNORECASE)
PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:(?!\$\{\w+:\?)[^/\s@]+@")
NEEDED = set(re.findall(r"\$\{(\w+):\?", TEXT))
KNOWN = dict.fromkeys(NEEDED, "0123456789abcdef")


def test_the_cluster_is_complete():
    assert set(SERVICES) == {
        "postgres", "mlflow", "api", "dispatcher", "encoder", "ray-head", "ray-worker", "ray-worker-gpu", "backup",
        "restore",
    }  # fmt: skip


def test_the_specification_s_schema_accepts_the_file(tmp_path):
    program = Path(sys.executable).parent / "check-jsonschema"
    command = [program, "--builtin-schema", "vendor.compose-spec"]
    bad = tmp_path / "docker-compose.yml"
    bad.write_text(TEXT.replace("restart: unless-stopped", "restarts: unless-stopped"))
    for file, good in ((ROOT / "docker-compose.yml", True), (bad, False)):
        done = subprocess.run([*command, file], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == good, done.stdout + done.stderr


def test_only_the_api_is_published_and_by_default_on_loopback():
    assert [name for name, service in SERVICES.items() if service.get("ports")] == ["api"]
    (port,) = interpolate(SERVICES["api"]["ports"], KNOWN)
    assert port == "127.0.0.1:8000:8000"
    assert not [name for name, service in SERVICES.items() if service.get("network_mode") or service.get("expose")]


def test_only_the_api_has_a_way_out():
    assert COMPOSE["networks"]["internal"] == {"internal": True}
    for name, service in SERVICES.items():
        assert service["networks"] == (["internal", "public"] if name == "api" else ["internal"]), name


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_container_has_only_what_it_needs(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert any(place.split(":")[0] == "/tmp" for place in service["tmpfs"])
    assert not service.get("privileged")
    assert not service.get("container_name"), "a name of its own cannot be scaled"
    assert not [each for each in service.get("volumes", []) if "docker.sock" in each]
    if name in ONCE:
        assert set(service["cap_add"]) <= {"DAC_READ_SEARCH", "CHOWN", "DAC_OVERRIDE", "FOWNER"}
    else:
        assert not service.get("cap_add")
        assert service["user"] == ("999:999" if name == "postgres" else "10001:10001")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_container_is_limited_and_stopped_with_patience(name):
    service = interpolate(SERVICES[name], KNOWN)
    limits = service["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) > 0
    assert re.fullmatch(r"\d+g", limits["memory"])
    assert re.fullmatch(r"\d+s", service["stop_grace_period"])
    assert service["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", LASTING)
def test_container_is_watched_and_started_again(name):
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    kind, *words = service["healthcheck"]["test"]
    assert kind == ("CMD-SHELL" if name == "postgres" else "CMD")
    assert words[0].split()[0] in ("python", "pg_isready"), "curl is in none of the images"
    assert {"interval", "timeout", "retries", "start_period"} <= set(service["healthcheck"])
    if words[:2] == ["python", "-c"]:
        compile(words[2], name, "exec")


@pytest.mark.parametrize("name", sorted(ONCE))
def test_copies_are_made_when_asked_for_only(name):
    service = SERVICES[name]
    assert (service["restart"], service["profiles"], service["healthcheck"]) == ("no", ["backup"], {"disable": True})
    script = ROOT / "docker" / f"{name}.sh"
    assert service["entrypoint"] == [f"/docker/{name}.sh"]
    assert f"./docker/{name}.sh:/docker/{name}.sh:ro" in service["volumes"]
    assert os.access(script, os.X_OK)


def test_everyone_waits_for_what_is_healthy():
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}, name
            assert "healthcheck" in SERVICES[other], other


def test_dispatcher_is_given_time_to_stop():
    """The supervisor waits for its child so long: 30 (stop_grace_seconds) + 15 + 10 seconds."""
    assert (
        int(SERVICES["dispatcher"]["stop_grace_period"].rstrip("s")) > Settings(home=Path("/x")).stop_grace_seconds + 25
    )


def test_secrets_have_no_defaults():
    for name, service in SERVICES.items():
        environment = service.get("environment", {})
        assert isinstance(environment, dict), f"{name}: write environment as key: value"
        for key, value in environment.items():
            if SECRET.search(key):
                assert re.fullmatch(r"\$\{\w+:\?run make secrets\}", str(value)), f"{name}: {key} has a default"
    assert not PASSWORD_IN_URL.search(TEXT)
    assert "NML_DATABASE_URL" in SERVICES["api"]["environment"]


def test_no_secret_is_on_a_command_line():
    for name, service in SERVICES.items():
        words = [
            *(service.get("command") or []),
            *(service.get("entrypoint") or []),
            *service["healthcheck"].get("test", []),
        ]
        assert not [word for word in words for needed in NEEDED if needed in str(word)], name


WHO_KNOWS = {
    "POSTGRES_PASSWORD": {"postgres"},
    "NML_DATABASE_PASSWORD": {"postgres", "api", "dispatcher", "backup", "restore"},
    "MLFLOW_DATABASE_PASSWORD": {"postgres", "mlflow", "backup", "restore"},
    "MLFLOW_PASSWORD": {"mlflow", "dispatcher"},
    "MLFLOW_FLASK_SERVER_SECRET_KEY": {"mlflow"},
    "RAY_AUTH_TOKEN": {"dispatcher", "ray-head", "ray-worker", "ray-worker-gpu"},
    "NML_ENCODER_TOKEN": {"api", "encoder"},
}


@pytest.mark.parametrize("secret", sorted(WHO_KNOWS))
def test_a_secret_is_told_only_to_those_who_use_it(secret):
    told = {name for name, service in SERVICES.items() if f"${{{secret}:?" in yaml.safe_dump(service, width=10_000)}
    assert told == WHO_KNOWS[secret]


def test_example_names_exactly_the_secrets_that_are_needed():
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if line and not line.startswith("#")} == {f"{name}=" for name in NEEDED}
    assert set(WHO_KNOWS) == NEEDED


def test_example_names_every_option_with_its_default():
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    told = set(re.findall(r"^# (\w+)=(\S*)", example, re.MULTILINE))
    assert told == set(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))


def test_ray_asks_everyone_for_its_token():
    for name in ("dispatcher", "ray-head", "ray-worker", "ray-worker-gpu"):
        assert SERVICES[name]["environment"]["RAY_AUTH_MODE"] == "token"


def size(text: str) -> int:
    """Bytes of compose's 8g or 2gb."""
    return int(re.fullmatch(r"(\d+)gb?", text).group(1)) * 2**30


def test_a_worker_has_what_it_promises_to_ray():
    """Jobs and object store fit into the container with room for Ray, and the object store into its shared memory."""
    for name in ("ray-worker", "ray-worker-gpu"):
        service = interpolate(SERVICES[name], KNOWN)
        options = dict(word.split("=") for word in service["command"] if "=" in word)
        jobs, store = int(options["--memory"]), int(options["--object-store-memory"])
        assert jobs + store + 10**9 <= size(service["deploy"]["resources"]["limits"]["memory"])
        assert store < size(service["shm_size"])
        assert options["--num-cpus"] == service["deploy"]["resources"]["limits"]["cpus"]
        limit = interpolate(SERVICES["dispatcher"]["environment"]["NML_MEMORY_LIMIT"], KNOWN)
        assert Settings(home=Path("/x"), memory_limit=limit).memory_bytes <= jobs


def test_images_and_compose_say_the_same():
    for name in OWN:
        service, words = SERVICES[name], dict(last_stage(Path(BUILDS[name]["dockerfile"]).name))
        assert "entrypoint" not in service, name
        if name in ("api", "mlflow"):
            assert service["command"] == json.loads(words["CMD"])
            assert service["healthcheck"]["test"][1:] == json.loads(words["HEALTHCHECK"].partition("CMD")[2])
        if name in ("ray-worker", "ray-worker-gpu"):
            assert set(json.loads(words["CMD"])) <= set(service["command"])


@pytest.mark.parametrize("name", ["api", "dispatcher"])
def test_settings_of_the_service_are_taken(name, monkeypatch):
    for key in [key for key in os.environ if key.startswith("NML_")]:
        monkeypatch.delenv(key)
    environment = interpolate(SERVICES[name]["environment"], KNOWN)
    known = {f"NML_{field.upper()}" for field in Settings.model_fields}
    assert {key for key in environment if key.startswith("NML_")} <= known, "misspelt, or not a setting any more"
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    settings = Settings()
    assert settings.database == f"postgresql+psycopg://nml:{KNOWN['NML_DATABASE_PASSWORD']}@postgres:5432/nml"
    assert (settings.runner, settings.ray_jobs_url) == ("ray", "http://ray-head:8265")
    if name == "api":
        assert settings.keys_required
        assert settings.api_workers == 2


@pytest.mark.parametrize("extra, host, answered", [
    ("", "127.0.0.1:8000", True), ("", "localhost:9000", True), ("", "192.0.2.7:8000", True), ("", "api:8000", True),
    ("", "nml.example.org", False), ("nml.example.org", "nml.example.org", True), ("nml.example.org", "x.org", False),
])  # fmt: skip
def test_clients_are_answered_at_the_published_address(extra, host, answered, monkeypatch):
    for key, value in interpolate(SERVICES["api"]["environment"], {**KNOWN, "NML_ALLOWED_HOSTS": extra}).items():
        monkeypatch.setenv(key, value)
    hosts = Hosts(Settings())
    if answered:
        hosts.check_host(host.encode())
    else:
        with pytest.raises(Problem):
            hosts.check_host(host.encode())


def test_what_must_outlive_a_container_is_on_a_named_volume():
    expected = {
        "postgres": {"postgres:/var/lib/postgresql/data"}, "mlflow": {"mlflow:/mlflow"},
        **{name: {"data:/data"} for name in OWN if name != "mlflow"},
    }  # fmt: skip
    for name, wanted in expected.items():
        assert wanted == {volume for volume in SERVICES[name]["volumes"] if not volume.startswith("./")}, name
    assert set(COMPOSE["volumes"]) == {"data", "mlflow", "postgres", "backups"}
    for service in SERVICES.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or ((ROOT / source).is_file() and volume.endswith(":ro")), volume


def test_an_image_is_built_by_one_service_alone():
    """Compose builds all at once, and two builds of one tag get in each other's way."""
    made = [service["image"] for service in SERVICES.values() if "build" in service]
    assert len(set(made)) == len(made)


def test_no_temporary_file_system_is_mounted_over_a_link():
    """/var/run is one in Debian's images, and engines differ in what they make of it."""
    places = [each.split(":")[0] for service in SERVICES.values() for each in service["tmpfs"]]
    assert places
    assert not [each for each in places if each.startswith("/var/run")]


def test_dockerfiles_of_the_compose_file_exist():
    assert {BUILDS[name]["dockerfile"] for name in OWN} == {
        "docker/api.Dockerfile", "docker/mlflow.Dockerfile", "docker/worker.Dockerfile"
    }  # fmt: skip
    for name in OWN:
        assert (ROOT / BUILDS[name]["context"] / BUILDS[name]["dockerfile"]).is_file()
    images = {name: SERVICES[name]["image"] for name in SERVICES}
    assert all(re.search(r":\d+\.\d+", image) for image in images.values()), images


def _compose_missing() -> bool:
    docker = shutil.which("docker")
    return docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0


@pytest.mark.skipif(_compose_missing(), reason="the `docker compose` command is not installed")
def test_compose_accepts_the_file_and_refuses_it_without_secrets(tmp_path):
    command = ["docker", "compose", "--profile=gpu", "--profile=backup", "config", "--quiet"]
    bare = {key: value for key, value in os.environ.items() if key not in NEEDED}
    for environment, good in (({**bare, **KNOWN}, True), (bare, False)):
        run = subprocess.run(
            [*command[:2], "--env-file=/dev/null", *command[2:]],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (run.returncode == 0) == good, run.stderr
