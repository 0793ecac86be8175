"""For those who run the service: probes, figures, and a description that is true."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.settings import Settings
from tests.service.api.server import Live
from tests.service.api.test_problems import checked


def samples(live: Live) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Everything that /metrics tells, by name and labels."""
    response = live.http.get("/metrics")
    assert response.status_code == 200
    families = text_string_to_metric_families(response.text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_ready_only_with_dispatcher_database_and_disk(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from service.api import readiness

    monkeypatch.setattr(readiness, "_KEPT_SECONDS", 0.0)
    live = serve()
    problem = checked(live.http.get("/readyz"), 503)
    assert (problem.model_extra or {})["reasons"] == ["no dispatcher is running, so jobs would wait"]
    live.store.dispatchers.beat("one", host="here", pid=1, info={})
    assert (live.http.get("/readyz").status_code, live.http.get("/readyz").json()) == (200, {"status": "ready"})
    full = serve(min_free_bytes=10**18)
    problem = checked(full.http.get("/readyz"), 503)
    assert "disk" in problem.detail
    assert full.http.get("/livez").json() == {"status": "alive"}


def test_who_asks_while_the_first_look_is_under_way_waits_for_what_it_finds(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on = threading.Event(), threading.Event()
    readiness = live.state.readiness
    real = readiness._look

    def slow() -> list[str]:
        looking.set()
        go_on.wait(120)
        return real()

    monkeypatch.setattr(readiness, "_look", slow)
    monkeypatch.setattr("service.api.readiness._PATIENCE", 120.0)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(httpx.get, f"{live.url}/readyz", timeout=120)]
        assert looking.wait(120)
        asked += [pool.submit(httpx.get, f"{live.url}/readyz", timeout=120) for _ in range(3)]
        _, waiting = wait(asked[1:], timeout=0.5)
        go_on.set()
        assert len(waiting) == 3, "it was answered before anybody knew"
        assert [each.result().status_code for each in asked] == [503] * 4


def test_figures_for_prometheus(live: Live) -> None:
    live.submit()
    live.submit()
    job = live.claim()
    live.tell(job, 1, progress={"epochs_per_second": 2.5}, tracker_error="MLflow is away")
    live.store.dispatchers.beat("one", host="here", pid=1, info={})
    live.http.get(f"/v1/jobs/{job.id}")
    live.http.get("/v1/jobs/absent")
    live.http.get("/nothing/here")
    found = samples(live)
    assert found["nml_jobs", (("kind", "train"), ("state", "running"))] == 1
    assert found["nml_jobs", (("kind", "train"), ("state", "queued"))] == 1
    assert found["nml_jobs", (("kind", "sweep"), ("state", "failed"))] == 0
    assert found["nml_epochs_per_second", ()] == 2.5
    assert found["nml_tracker_errors_total", ()] == 1
    assert found["nml_retries_total", (("kind", "oom"),)] == 0
    assert found["nml_dispatchers", ()] == 1
    assert found["nml_database_up", ()] == 1
    assert found["nml_queue_age_seconds", ()] >= 0
    one = {"route": "/v1/jobs/{job_id}", "method": "GET"}
    for status in ("2xx", "4xx"):
        assert found["nml_http_request_seconds_count", tuple(sorted((one | {"status": status}).items()))] == 1
    unknown = (("method", "any"), ("route", "none"), ("status", "4xx"))
    assert found["nml_http_request_seconds_count", unknown] == 1


def test_every_route_is_described(tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path))
    described = {(method.upper(), path) for path, item in app.openapi()["paths"].items() for method in item}
    routed = {
        (method, route.path.replace(":path}", "}"))
        for route in iter_route_contexts(app.routes)
        for method in route.methods or ()
    }
    heads = {("HEAD", path) for method, path in described if method == "GET"}  # as GET, without the body
    pages = {(method, path) for method in ("GET", "HEAD") for path in ("/", "/console/{name}", "/openapi.json")}
    assert routed - described - heads == {("GET", "/docs"), *pages}
    assert described <= routed


def test_description_is_complete(tmp_path: Path) -> None:
    document = create_app(Settings(home=tmp_path, require_key=True)).openapi()
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    assert set(re.findall(r"#/components/schemas/([\w-]+)", text)) <= set(schemas)
    assert not re.search(r"HTTPValidationError|-Input|-Output", text)
    assert document["security"] == [{"bearer": []}, {"apiKey": []}]
    names = []
    for path, item in document["paths"].items():
        for operation in item.values():
            names.append(operation["operationId"])
            assert operation["summary"], path
            assert operation["tags"], path
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert response["content"] == {
                        "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                    }, (path, status)
            assert {"401", "403", "429", "503"} <= set(operation["responses"])
            assert ("security" in operation) == (path in ("/livez", "/readyz"))
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/JobSubmission"}
    assert body["examples"]


def test_pages_for_people(live: Live) -> None:
    page = live.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script" not in policy + page.text
    assert not re.search(r"https?:|//|@import|url\(", page.text)  # it works without internet
    style = re.search(r"<style>(.*?)</style>", page.text, re.DOTALL)
    assert style is not None
    assert base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode() in policy
    document = live.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"<b>{method.upper()}</b> <code>{path}</code> <span>{html.escape(operation['summary'])}" in page.text


def test_app_starts_without_anything_heavy(repo_root: Path) -> None:
    code = (
        "import sys, service.app; from service.settings import Settings; import tempfile, pathlib;"
        "service.app.create_app(Settings(home=pathlib.Path(tempfile.mkdtemp()))).openapi();"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=True)
    assert not {"torch", "ray", "mlflow", "pyarrow", "pandas", "sklearn", "matplotlib"} & set(run.stdout.split())
