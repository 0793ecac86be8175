"""submit, jobs, watch, cancel and logs against a real API; the test plays the dispatcher's part in the store."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.store.records import Claim, NewEvent
from tests.service.api.server import Live
from tests.service.cli.commands import NML, nml, start_nml
from tests.service.datasets.test_resolve import add
from tests.service.terminal import shown_on_terminal
from tests.trainer.tracking.mlflow_server import free_port

TINY = ["--dataset", "synthetic", "--set", "data.synthetic.nodes=60", "--set", "optimiser.epochs=3"]
START = NewEvent("start", {"spec_hash": "0" * 64, "nodes": 60, "edges": 300, "tags": {}}, epoch=0)


def submitted(*options: str) -> str:
    return nml("submit", *TINY, *options).stdout.strip()


def run_when_watched(live: Live, job_id: str, then: Callable[[Any], None] | None = None) -> threading.Thread:
    """Do to a job what a dispatcher does, once somebody watches; end it unless `then` does something else."""

    def work() -> None:
        until_watched(live)
        job = live.claim(job_id)
        claim = Claim.on(job)
        live.store.claims.record(claim, [START])
        for epoch in (1, 2, 3):
            time.sleep(0.1)
            live.tell(job, epoch, progress={"epoch": epoch, "epochs": 3, "phase": "train", "share": epoch / 3})
        live.store.claims.record(claim, [NewEvent("phase", {"name": "export"}, epoch=3)])
        if then is None:
            live.finish(job)
        else:
            then(job)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def until_watched(live: Live) -> None:
    until = time.monotonic() + 120
    while not live.state.feed.watchers:
        assert time.monotonic() < until, "nobody watches"
        time.sleep(0.02)


def test_submit_prints_the_id_alone_and_sends_what_the_options_say(live: Live):
    done = nml("submit", *TINY, "--name", "first try", "--priority", "5", "--deadline-minutes", "9")
    job = live.store.jobs.get(done.stdout.strip())
    assert job is not None
    assert (job.name, job.priority) == ("first try", 5)
    assert job.deadline == pytest.approx(job.created + 540, abs=30)
    assert (job.spec["data"]["synthetic"]["nodes"], job.spec["optimiser"]["epochs"]) == (60, 3)
    assert f"nml watch {job.id}" in done.stderr
    document = json.loads(nml("submit", *TINY, "--json").stdout)
    assert document["state"] == "queued"
    twice = {submitted("--idempotency-key", "k") for _ in range(2)}
    assert len(twice) == 1


def test_submit_takes_spec_files_and_sweeps(live: Live, tmp_path: Path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("run: {seed: 7}\noptimiser: {epochs: 4}\n")
    job = live.store.jobs.get(nml("submit", str(spec), "--set", "run.seed=8").stdout.strip())
    assert job is not None
    assert (job.spec["run"]["seed"], job.spec["optimiser"]["epochs"]) == (8, 4)
    sweep = live.store.jobs.get(submitted("--sweep", "--trials", "3"))
    assert sweep is not None
    assert (sweep.kind, sweep.spec["trials"], sweep.spec["base"]["optimiser"]["epochs"]) == ("sweep", 3, 3)


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["submit", "--set", "method.temperature=-1"], 3, "method.temperature"),
        (["submit", "--dataset", "papers"], 3, "no data set of this name"),
        (["submit", "--dataset", "papers", "--preset", "nml-official"], 3, "no published settings"),
        (["submit", "--trials", "3"], 3, "--sweep"),
        (["submit", "--set", "data.name=files", "--set", "data.files.npz=a.npz"], 3, "nml datasets push"),
        (["submit", "--set", "data.synthetic.nodes=100000000", "--dataset", "synthetic"], 3, "GB"),
        (["submit", "--priority", "101"], 2, "--priority"),
        (["jobs", "01nothing"], 3, "there is no job with this id"),
        (["watch", "01nothing"], 3, "there is no job with this id"),
        (["cancel", "a/b"], 3, "a/b"),
        (["logs", "01nothing"], 3, "there is no job"),
        (["jobs", "--url", "localhost:1"], 3, "http://host:8000"),
        (["datasets", "push", "g"], 3, "give one source"),
        (["datasets", "push", "g", "--npz", "missing.npz"], 3, "missing.npz"),
        (["datasets", "push", "g", "--npz", "a.npz", "--set", "data.features=zscore"], 3, "data.features"),
    ],
)
def test_mistakes_get_a_sentence_and_the_right_exit_code(live: Live, arguments, code, says):
    assert says in nml(*arguments, code=code).stderr


def test_a_service_that_is_not_there_is_named_with_the_remedy():
    url = f"http://127.0.0.1:{free_port()}"
    told = nml("jobs", "--url", url, code=5).stderr
    assert url in told
    assert "nml serve" in told


def test_jobs_are_listed_and_told_in_full(live: Live):
    assert "nml submit" in nml("jobs").stderr
    first, second = submitted("--name", "older"), submitted()
    search = submitted("--sweep")
    job = live.claim(first)
    progress = {"phase": "train", "epoch": 1, "epochs": 3, "share": 0.33, "eta_seconds": 75}
    live.tell(job, 1, progress=progress, metrics={"loss": 1.5})
    listed = nml("jobs").stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [search, second, first]
    for words in ("older", "train 1/3 33 %", "1:15", "running"):
        assert words in listed
    assert [entry["id"] for entry in json.loads(nml("jobs", "--state", "running", "--json").stdout)] == [first]
    told = nml("jobs", first).stdout
    for words in (first, "older", "synthetic", "running", "attempt", "1:15", "loss"):
        assert words in told
    live.finish(job, "failed", failure_kind="invalid", failure_message="the loss is not finite")
    assert "invalid: the loss is not finite" in nml("jobs", first).stdout
    assert json.loads(nml("jobs", first, "--json").stdout)["failure"]["kind"] == "invalid"


def test_watch_shows_lines_in_a_pipe_and_ends_with_the_job(live: Live):
    job_id = submitted("--name", "x")
    working = run_when_watched(live, job_id)
    done = nml("watch", job_id)
    working.join()
    for words in ("60 nodes, 300 edges", "epoch 3/3  loss 0.3333", "export"):
        assert words in done.stderr
    assert job_id in done.stdout
    assert "succeeded" in done.stdout
    assert "succeeded" in nml("watch", job_id).stdout  # it has ended already


def test_watch_as_json_tells_every_event_from_the_first(live: Live):
    job_id = submitted()
    working = run_when_watched(live, job_id)
    events = [json.loads(line) for line in nml("watch", job_id, "--json").stdout.splitlines()]
    working.join()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    kinds = ["state", "state", "start", "epoch", "epoch", "epoch", "phase", "state"]
    assert [event["type"] for event in events] == kinds
    assert events[-1]["state"] == "succeeded"


def test_watch_draws_a_bar_on_a_terminal(live: Live):
    job_id = submitted()
    working = run_when_watched(live, job_id)
    shown = shown_on_terminal([*NML, "watch", job_id])
    working.join()
    assert b"3/3" in shown
    assert b"loss" in shown


@pytest.mark.parametrize(
    "outcome, code, says",
    [
        ({"state": "failed", "failure_kind": "invalid", "failure_message": "bad data"}, 3, "invalid: job .*: bad data"),
        ({"state": "failed", "failure_kind": "oom", "failure_message": "too big"}, 4, "oom: .*too big"),
        ({"state": "failed", "failure_kind": "infra", "failure_message": "disk"}, 5, "infra: .*disk"),
        ({"state": "failed", "failure_kind": "deadline", "failure_message": "late"}, 6, "deadline: .*late"),
        ({"state": "cancelled"}, 6, "cancelled"),
    ],
)
def test_watch_ends_with_the_exit_code_of_what_came_out(live: Live, outcome, code, says):
    job_id = submitted()
    live.finish(live.claim(job_id), **outcome)
    told = nml("watch", job_id, code=code).stderr
    assert re.search(says, told), told


def test_watch_tells_of_retries(live: Live):
    job_id = submitted()

    def again(job: Any) -> None:
        live.store.claims.requeue(
            Claim.on(job), delay=0, reason="its process was killed", failure_kind="infra", infra_retries=1,
            oom_retries=0,
        )  # fmt: skip
        second = live.claim(job_id)
        live.store.claims.record(Claim.on(second), [NewEvent("rewind", {"epoch": 2}, epoch=2)])
        live.finish(second)

    working = run_when_watched(live, job_id, again)
    told = nml("watch", job_id)
    working.join()
    assert "attempt 1 ended early (its process was killed)" in told.stderr
    assert "attempt 2 starts" in told.stderr
    assert "continues from epoch 2" in told.stderr
    assert "2 (tried again: 1 × infra)" in told.stdout


def test_interrupted_watching_leaves_the_job_alone(live: Live):
    job_id = submitted()
    job = live.claim(job_id)
    process = start_nml("watch", job_id)
    until_watched(live)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert f"Job {job_id} goes on" in told
    assert f"nml cancel {job_id}" in told
    stored = live.store.jobs.get(job_id)
    assert stored is not None
    assert (stored.state, stored.attempt) == ("running", job.attempt)


def test_submit_and_watch_in_one(live: Live):
    process = start_nml("submit", *TINY, "--watch")
    assert process.stdout is not None
    job_id = process.stdout.readline().strip()
    working = run_when_watched(live, job_id)
    out, told = process.communicate(timeout=120)
    working.join()
    assert process.returncode == 0, told
    assert "epoch 3/3" in told
    assert "succeeded" in out


def test_a_sweep_is_watched_as_a_list_of_trials(live: Live):
    sweep_id = submitted("--sweep", "--trials", "2")
    job = live.claim(sweep_id)
    for data in (
        {"type": "start", "spec_hash": "0", "objective": "val_accuracy", "concurrency": 1},
        {"type": "trial", "number": 0, "origin": "start", "changes": {"method.temperature": 0.4}},
        {"type": "running", "number": 0, "host": "here", "pid": 1},
        {
            "type": "done", "number": 0, "state": "finished", "value": 0.75, "values": [0.75], "epoch": 3,
            "seconds": 1.0, "error": None,
        },
    ):  # fmt: skip
        kind = str(data.pop("type"))
        live.store.claims.record(Claim.on(job), [NewEvent(kind, {"elapsed": 1.0, **data})])

    def end() -> None:
        until_watched(live)
        live.finish(job)

    ending = threading.Thread(target=end)
    ending.start()
    told = nml("watch", sweep_id)
    ending.join()
    assert "trial 0 runs: τ 0.4" in told.stderr
    assert "trial 0 finished: val_accuracy 0.7500" in told.stderr
    assert "succeeded" in told.stdout


def test_cancel_and_logs(live: Live):
    job_id = submitted()
    job = live.claim(job_id)
    folder = live.settings.run_directory(job_id)
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("one\ntwo\n")
    assert nml("logs", job_id).stdout == "one\ntwo\n"
    assert nml("logs", job_id, "--tail", "1").stdout == "two\n"
    process = start_nml("logs", job_id, "--follow", "--tail", "1")
    assert process.stdout is not None
    assert process.stdout.readline() == "two\n"
    with (folder / "log.txt").open("a") as log:
        log.write("two\nthree\n")
    assert [process.stdout.readline() for _ in range(2)] == ["two\n", "three\n"]
    assert "cancelling" in nml("cancel", job_id).stderr
    live.finish(job, "cancelled")
    assert process.communicate(timeout=120)[0] == ""
    assert process.returncode == 0


def test_data_sets_of_the_service_are_listed_and_removed(live: Live):
    ready = add(live.store, live.settings, "papers", "0123456789ab")
    checking = add(live.store, live.settings, "papers", "ba9876543210", state="checking")
    states = {found["ref"]: found["state"] for found in json.loads(nml("datasets", "pushed", "--json").stdout)}
    assert states.items() >= {ready: "ready", checking: "checking", "digits": "ready"}.items()
    assert ready in nml("datasets", "pushed").stdout
    assert ready in nml("datasets", "unpush", ready).stderr
    assert ready not in nml("datasets", "pushed").stdout
    assert "cannot be deleted" in nml("datasets", "unpush", "digits", code=3).stderr
