"""The lower bounds in pyproject.toml are true: the client and the API run on exactly those versions.

Each test makes an environment of its own with pip, so it needs what `make env` needs, and half a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

CLIENT = """
import sys
from importlib.metadata import distributions
from service.cli import main
from service.client import Client, Unreachable

names = {item.metadata["Name"].lower() for item in distributions()}
assert not names & {"faiss-cpu", "psycopg", "alembic", "sqlalchemy", "fastapi", "torch", "ray", "mlflow"}, names
try:
    list(Client("http://127.0.0.1:9", patience=0.0).jobs())
except Unreachable as error:
    print("client:", error)
sys.argv = ["nml", "jobs", "--help"]
main()
"""

API = """
import sys
from pathlib import Path

from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings

settings = Settings(home=Path(sys.argv[1]), min_free_bytes=0)
with TestClient(create_app(settings), base_url="http://127.0.0.1:8000", client=("127.0.0.1", 50_000)) as client:
    assert client.get("/livez").status_code == 200
    assert "/v1/jobs" in client.get("/openapi.json").json()["paths"]
    made = client.post("/v1/jobs", json={"data": {"name": "digits"}})
    assert made.status_code == 202, made.text
    job = made.json()
    assert client.get(job["links"]["self"]).json()["state"] == "queued"
    assert client.get("/v1/jobs").json()["items"][0]["id"] == job["id"]
    refused = client.post("/v1/jobs", json={"optimiser": {"epochs": -1}})
    assert refused.status_code == 422, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert client.post(job["links"]["self"] + "/cancel").json()["state"] == "cancelled"
    with client.stream("GET", job["links"]["events"]) as stream:
        assert "cancelled" in "".join(stream.iter_text())
    sent = {"nodes": ("nodes.csv", b"id,x\\na,1\\nb,2\\n"), "edges": ("edges.csv", b"source,target\\na,b\\n")}
    assert client.post("/v1/datasets", data={"name": "mine"}, files=sent).status_code in (201, 202)
    assert "nml_" in client.get("/metrics").text
print("served")
"""


def lowest(root: Path, *extras: str) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    pinned = []
    for requirement in map(Requirement, lines):
        (bound,) = requirement.specifier
        assert bound.operator == ">=", f"{requirement}: write a lower bound"
        extra = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        pinned.append(f"{requirement.name}{extra}=={bound.version}")
    return pinned


def run_in_fresh_environment(root: Path, folder: Path, requirements: list[str], script: str, *arguments: str) -> str:
    python = folder / "env" / "bin" / "python"
    quiet = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    subprocess.run([python, "-m", "pip", "install", *quiet, *requirements], check=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [python, "-c", script, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout


def test_client_runs_on_its_lowest_versions_and_brings_no_server(repo_root, tmp_path):
    said = run_in_fresh_environment(repo_root, tmp_path, lowest(repo_root, "client"), CLIENT)
    assert "client: " in said
    assert "Usage" in said


def test_api_runs_on_its_lowest_versions(repo_root, tmp_path):
    home = str(tmp_path / "home")
    assert "served" in run_in_fresh_environment(repo_root, tmp_path, lowest(repo_root, "serve"), API, home)
