"""What a job leaves: log, figures over time, pictures, embeddings; and nothing that is not the job's."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from service.api import files
from service.api.schemas import Series
from service.api.series import curve, trials
from service.store.records import Claim, Event, NewEvent
from tests.service.api.server import SMALL, Live
from tests.service.api.test_problems import checked


def finished(live: Live, *, export: bool = True) -> tuple[str, Path]:
    """A job that has succeeded, and its run directory with some files."""
    live.submit(SMALL | {"run": {"export": export}})
    job = live.claim()
    run = live.settings.run_directory(job.id)
    for name, content in {
        "figures/loss.png": b"\x89PNG loss", "figures/search.html": b"<script>alert(1)</script>",
        "figures/hidden.png": b"not listed", "embeddings/vectors.npy": bytes(range(200)),
        "embeddings/manifest.json": b'{"files": {}}', "spec.json": b"{}",
    }.items():  # fmt: skip
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    (live.settings.home / "secret.png").write_bytes(b"secret")
    (run / "figures" / "link.png").symlink_to(live.settings.home / "secret.png")
    listed = ["loss.png", "search.html", "link.png", "absent.png", "../spec.json", "../../../secret.png"]
    live.finish(job, result={"figures": listed, "embeddings": export})
    return job.id, run


def test_figures(live: Live) -> None:
    job_id, _ = finished(live)
    picture = live.http.get(f"/v1/jobs/{job_id}/figures/loss.png")
    assert (picture.status_code, picture.content) == (200, b"\x89PNG loss")
    assert picture.headers["content-type"] == "image/png"
    assert picture.headers["x-content-type-options"] == "nosniff"
    page = live.http.get(f"/v1/jobs/{job_id}/figures/search.html")
    assert page.headers["content-disposition"].startswith("attachment")
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    "name",
    [
        "hidden.png", "link.png", "absent.png", "..%2fspec.json", "..%2f..%2f..%2fsecret.png", "%2e%2e", "loss.png%20",
        "LOSS.PNG", ".loss.png", "loss.png.bak", "%2fetc%2fpasswd", "loss.png/", "..%5cspec.json", "l" * 5_000,
    ],
)  # fmt: skip
def test_nothing_but_listed_figures(shared: Live, name: str) -> None:
    job_id, _ = finished(shared)
    response = shared.http.get(f"/v1/jobs/{job_id}/figures/{name}")
    checked(response, 404)
    assert b"secret" not in response.content


def test_folder_that_became_a_link_is_not_followed(live: Live) -> None:
    job_id, run = finished(live)
    (run / "figures").rename(live.settings.home / "elsewhere")
    (run / "figures").symlink_to(live.settings.home / "elsewhere")
    checked(live.http.get(f"/v1/jobs/{job_id}/figures/loss.png"), 404)
    run.rename(live.settings.home / "moved")
    run.symlink_to(live.settings.home / "moved")
    checked(live.http.get(f"/v1/jobs/{job_id}/embeddings/vectors.npy"), 404)


def test_embeddings_with_ranges(live: Live) -> None:
    job_id, _ = finished(live)
    address = f"/v1/jobs/{job_id}/embeddings/vectors.npy"
    whole = live.http.get(address)
    assert (whole.status_code, whole.content) == (200, bytes(range(200)))
    assert whole.headers["content-type"] == "application/octet-stream"
    tag = whole.headers["etag"]
    part = live.http.get(address, headers={"Range": "bytes=150-", "If-Range": tag})
    assert (part.status_code, part.content) == (206, bytes(range(150, 200)))
    other = live.http.get(address, headers={"Range": "bytes=150-", "If-Range": '"other"'})
    assert (other.status_code, len(other.content)) == (200, 200)
    beyond = live.http.get(address, headers={"Range": "bytes=500-"})
    checked(beyond, 416)
    assert beyond.headers["content-range"] == "bytes */200"
    for wrong in ("bytes=x", "5", "bytes=9-3"):
        checked(live.http.get(address, headers={"Range": wrong}), 400)
    other = live.http.get(address, headers={"Range": "lines=1-2"})  # units that nobody here knows
    assert (other.status_code, len(other.content)) == (200, 200)
    assert live.http.get(f"/v1/jobs/{job_id}/embeddings/manifest.json").json() == {"files": {}}
    checked(live.http.get(f"/v1/jobs/{job_id}/embeddings/ids.npy"), 404)
    for name in ("spec.json", "..%2fspec.json", "vectors.npy.tmp", "%2fetc%2fpasswd"):
        assert live.http.get(f"/v1/jobs/{job_id}/embeddings/{name}").status_code in (404, 422)


def test_embeddings_only_of_jobs_that_left_some(live: Live) -> None:
    without, _ = finished(live, export=False)
    checked(live.http.get(f"/v1/jobs/{without}/embeddings/vectors.npy"), 404)
    waits = live.submit()["id"]
    assert "queued" in checked(live.http.get(f"/v1/jobs/{waits}/embeddings/vectors.npy"), 409).detail


def test_log_is_the_runs_else_the_processs(live: Live) -> None:
    job_id = live.submit()["id"]
    address = f"/v1/jobs/{job_id}/log"
    empty = live.http.get(address)
    assert (empty.status_code, empty.text) == (200, "")
    assert empty.headers["content-type"] == "text/plain; charset=utf-8"
    own, run = live.settings.job_directory(job_id), live.settings.run_directory(job_id)
    own.mkdir(parents=True)
    (own / "output.txt").write_bytes(b"Traceback\nbad \xff byte\n")
    assert live.http.get(address).text == "Traceback\nbad \N{REPLACEMENT CHARACTER} byte\n"
    run.mkdir(parents=True)
    (run / "log.txt").write_text("".join(f"line {n}\n" for n in range(5_000)))
    assert live.http.get(address, params={"tail": 2}).text == "line 4998\nline 4999\n"
    assert len(live.http.get(address).text.splitlines()) == 1_000
    for wrong in (0, -1, 10_001, "all"):
        checked(live.http.get(address, params={"tail": wrong}), 422)


def test_log_is_bounded_and_no_link(live: Live) -> None:
    job_id = live.submit()["id"]
    run = live.settings.run_directory(job_id)
    run.mkdir(parents=True)
    (run / "log.txt").write_bytes(b"x" * (files.MAX_LOG_BYTES + 500_000))
    assert len(live.http.get(f"/v1/jobs/{job_id}/log").text) == files.MAX_LOG_BYTES
    (run / "log.txt").unlink()
    (run / "log.txt").symlink_to("/etc/hostname")
    assert live.http.get(f"/v1/jobs/{job_id}/log").text == ""


def test_series_follow_rewinds(live: Live) -> None:
    live.submit()
    job = live.claim()
    live.tell(job, 1, 2, 3, 4)
    live.store.claims.record(Claim.on(job), [NewEvent("rewind", {"epoch": 2})])
    live.tell(job, 3, loss=30.0)
    live.store.claims.record(
        Claim.on(job), [NewEvent("epoch", {"metrics": {"loss": float("nan"), "auc": 0.5, "note": "x"}}, 4)]
    )
    found = live.http.get(f"/v1/jobs/{job.id}/metrics").json()
    Series.model_validate(found)
    assert found["epochs"] == [1, 2, 3, 4]
    assert found["series"] == {"loss": [1.0, 0.5, 10.0, None], "auc": [None, None, None, 0.5]}
    only = live.http.get(f"/v1/jobs/{job.id}/metrics", params={"names": "auc, other", "every": 3}).json()
    assert only == {"epochs": [3, 4], "series": {"auc": [None, 0.5]}, "every": 3}
    waits = live.submit()["id"]
    assert live.http.get(f"/v1/jobs/{waits}/metrics").json() == {"epochs": [], "series": {}, "every": 1}


def epochs(last: int) -> list[Event]:
    figures = [{"loss": float(n), "other": 1, "note": "x"} for n in range(1, last + 1)]
    return [Event("j", n, 0.0, "epoch", n, {"metrics": metrics}) for n, metrics in enumerate(figures, 1)]


def test_long_series_are_thinned_evenly_with_the_last(live: Live) -> None:
    live.submit()
    job = live.claim()
    live.tell(job, *range(1, 1_004), metrics={"epoch": 1_003})
    found = live.http.get(f"/v1/jobs/{job.id}/metrics", params={"limit": 100}).json()
    assert found["every"] == 11
    assert found["epochs"] == [*range(11, 1_002, 11), 1_003]
    assert found["series"]["loss"] == [1 / n for n in found["epochs"]]
    live.store.claims.record(Claim.on(job), [NewEvent("rewind", {"epoch": 500})])  # 1003 no longer holds
    found = live.http.get(f"/v1/jobs/{job.id}/metrics", params={"limit": 100}).json()
    assert found["epochs"] == list(range(11, 501, 11))


def test_series_of_unknown_length_take_little_memory() -> None:
    found = curve(epochs(1_003), most=100, names=["loss"])
    assert found["epochs"] == [*range(16, 1_001, 16), 1_003]
    assert found["series"] == {"loss": [float(n) for n in found["epochs"]]}
    (one,) = epochs(1)
    many = (replace(one, seq=n, epoch=n) for n in range(1, 100_000))
    tracemalloc.start()
    found = curve(many, most=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found["epochs"]) <= 101
    assert peak < 1_000_000


def test_trials_of_a_sweep_are_thinned_with_the_last() -> None:
    points = {n: {"trial": n - 1, "value": float("nan") if n == 4 else n / 2} for n in range(1, 8)}
    assert trials(points, every=2, most=100, names=()) == {
        "epochs": [2, 4, 6, 7], "series": {"trial": [1, 3, 5, 6], "value": [1.0, None, 3.0, 3.5]}, "every": 2
    }  # fmt: skip
    assert trials(points, every=1, most=3, names=["value"])["epochs"] == [3, 6, 7]
