"""What the Ray runner concludes from what a cluster answers, or does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.dispatch.ray import RayRunner
from service.dispatch.runner import Alive, Gone, LaunchSpec, Outcome, take_attempt, write_launch, write_outcome
from tests.service.dispatch.ray_head import TOKEN, Head, standing_in
from trainer.errors import Infrastructure, InvalidInput

ENDED = {"exit_code": 0, "signal": None, "kind": None, "message": None, "oom_killed": False}


@pytest.fixture
def head() -> Iterator[Head]:
    with standing_in() as found:
        yield found


@pytest.fixture
def launch(tmp_path: Path) -> LaunchSpec:
    made = LaunchSpec(
        "job1", 2, ("python", "-m", "trainer"), {"MLFLOW_TRACKING_PASSWORD": "hidden"}, tmp_path / "it's here",
        memory_bytes=3_000_000, cpus=2, gpus=1, stop_seconds=0.2,
    )  # fmt: skip
    write_launch(made)
    return made


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.dispatch.ray_jobs.REST_SECONDS", 0.0)


def runner_for(url: str, *, settle_seconds: float = 0.2, look_seconds: float = 0.0, **environ: str) -> RayRunner:
    variables = environ or {"RAY_AUTH_TOKEN": TOKEN}
    return RayRunner(url, environ=variables, settle_seconds=settle_seconds, look_seconds=look_seconds)


def end(launch: LaunchSpec, document: dict[str, object] = ENDED) -> None:
    """What a shim does over an attempt."""
    descriptor = take_attempt(launch)
    assert descriptor is not None
    write_outcome(descriptor, dict(document))
    os.close(descriptor)


def start_shim(launch: LaunchSpec) -> None:
    descriptor = take_attempt(launch)
    assert descriptor is not None
    os.close(descriptor)


def poll_until_over(runner: RayRunner, launch: LaunchSpec) -> Gone | Outcome:
    while True:
        found = runner.poll(launch, None)
        if not isinstance(found, Alive):
            return found


def unused_url() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_submission_names_the_shim_the_resources_and_nothing_secret(head, launch):
    reference = runner_for(head.url + "/").start(launch)
    assert reference == {"kind": "ray", "submission_id": "job1-2"}
    (body,) = head.bodies
    words = shlex.split(body["entrypoint"])
    assert words == ["exec", sys.executable, "-P", "-m", "service.dispatch.shim", str(launch.launch_file)]
    assert (body["entrypoint_num_cpus"], body["entrypoint_num_gpus"], body["entrypoint_memory"]) == (2, 1, 3_000_000)
    assert body["metadata"] == {"nml_job": "job1", "nml_attempt": "2"}
    assert "hidden" not in json.dumps(body)
    assert TOKEN not in json.dumps(body)


def test_an_attempt_that_was_submitted_before_is_adopted(head, launch):
    runner = runner_for(head.url)
    first = runner.start(launch)
    assert runner_for(head.url).start(launch) == first
    assert len(head.bodies) == 1


def test_a_start_that_nobody_answers_is_found_by_its_status(head, launch):
    runner = runner_for(head.url)
    head.hang_up = True
    assert runner.start(launch) == runner.intent(launch)
    head.hang_up = False
    assert list(head.submissions) == ["job1-2"]
    assert runner.poll(launch, None) == Alive()


@pytest.mark.parametrize("answer", [(500, "No available agent to submit job, please try again later."), (404, "")])
def test_a_start_that_did_not_arrive_is_repeated_by_whoever_looks(head, launch, answer):
    head.answer = answer
    with contextlib.suppress(OSError):
        runner_for(head.url).start(launch)
    head.answer = None
    assert runner_for(head.url).poll(launch, None) == Alive()
    assert list(head.submissions) == ["job1-2"]


def test_a_start_while_the_head_is_away_is_made_up_for_or_withdrawn(launch):
    runner = runner_for(unused_url())
    reference = runner.start(launch)
    with pytest.raises(OSError, match="cannot reach Ray at http"):
        runner.poll(launch, reference)
    runner.stop(launch, reference, force=False)
    assert isinstance(runner.poll(launch, reference), Gone), "what has not begun needs no head to be stopped"
    assert take_attempt(launch) is None


def test_a_job_that_ray_does_not_take_ends_with_its_words(head, launch):
    runner = runner_for(head.url)
    head.answer = (400, "TypeError: entrypoint_memory must be an integer")
    with pytest.raises(OSError, match="refused the job: 400, TypeError: entrypoint_memory"):
        runner.start(launch)
    head.answer = None
    head.refuse = "TypeError: not this one"
    found = runner.poll(launch, None)
    assert isinstance(found, Gone)
    assert "not this one" in found.message
    assert take_attempt(launch) is None


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_what_ray_calls_alive_is_alive(head, launch, state):
    head.set("job1-2", state)
    assert runner_for(head.url).poll(launch, {"kind": "ray"}) == Alive()


def test_the_outcome_counts_whatever_ray_says(head, launch):
    end(launch)
    for state in ("RUNNING", "FAILED"):
        head.set("job1-2", state)
        assert runner_for(head.url).poll(launch, None) == Outcome(0)


def test_an_outcome_that_arrives_after_the_end_is_waited_for(head, launch):
    runner = runner_for(head.url, settle_seconds=60)
    start_shim(launch)
    head.set("job1-2", "SUCCEEDED", driver_exit_code=0)
    assert [runner.poll(launch, None) for _ in range(3)] == [Alive()] * 3
    launch.outcome_file.write_text(json.dumps(ENDED))
    assert runner.poll(launch, None) == Outcome(0)


def test_an_end_without_an_outcome_is_gone_with_the_end_of_rays_message(head, launch):
    start_shim(launch)
    head.set("job1-2", "FAILED", driver_exit_code=-9, message="trace\n" * 10_000 + "exit code -9")
    found = poll_until_over(runner_for(head.url), launch)
    assert isinstance(found, Gone)
    assert found.message.endswith("exit code -9")
    assert len(found.message) < 3_000
    assert not launch.stop_file.exists()


@pytest.mark.parametrize("lost", ["head", "node", "cluster"])
def test_a_shim_behind_a_break_is_told_to_stop_and_given_the_time(head, launch, lost):
    runner = runner_for(head.url, settle_seconds=0.5)
    start_shim(launch)
    if lost == "node":
        head.set("job1-2", "FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED")
    elif lost == "cluster":  # and a shim on the new one found the attempt begun
        head.set("job1-2", "FAILED", error_type="JOB_ENTRYPOINT_COMMAND_ERROR", driver_exit_code=2)
    assert runner.poll(launch, None) == Alive()
    assert launch.stop_file.exists()
    assert isinstance(poll_until_over(runner, launch), Gone)


def test_a_cluster_that_does_not_answer_says_nothing_about_a_job(head, launch):
    start_shim(launch)
    head.set("job1-2", "RUNNING")
    runner = runner_for(head.url)
    head.answer = (500, "GCS is not reachable")
    with pytest.raises(OSError, match=r"500, GCS is not reachable"):
        runner.poll(launch, None)
    assert runner.poll(launch, None) == Alive(), "it is not asked again at once"
    head.answer = None
    assert runner_for(head.url).poll(launch, None) == Alive()
    away = runner_for(unused_url())
    for call in (lambda: away.poll(launch, None), lambda: away.stop(launch, None, force=True)):
        with pytest.raises(OSError, match="cannot reach Ray at http"):
            call()


def test_what_is_no_dashboard_is_recognised(head, launch):
    head.answer = (200, "<html>Welcome to nginx</html>")
    with pytest.raises(OSError, match="not a Ray dashboard's: '<html>Welcome"):
        runner_for(head.url).poll(launch, None)


def test_a_gentle_stop_is_left_to_the_shim_and_force_to_ray(head, launch):
    head.set("job1-2", "RUNNING")
    runner = runner_for(head.url)
    runner.stop(launch, None, force=False)
    assert launch.stop_file.exists()
    assert head.asked == []
    for _ in range(3):  # a dispatcher asks again and again
        runner.stop(launch, None, force=True)
    assert head.asked == [("POST", "/api/jobs/job1-2/stop")]


def test_stopping_what_ray_does_not_know_is_no_error(head, launch):
    runner_for(head.url).stop(launch, None, force=True)
    assert head.asked == [("POST", "/api/jobs/job1-2/stop")]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stop_withdraws_a_job_that_waits_for_room(head, launch, restarted):
    runner = runner_for(head.url)
    runner.start(launch)
    runner.stop(launch, None, force=False)
    assert isinstance(runner.poll(launch, None), Gone)
    assert take_attempt(launch) is None, "its shim must not start any more"
    assert head.count("POST", "/stop") == 1
    if restarted:  # and nobody has written down that it is gone
        assert isinstance(runner_for(head.url).poll(launch, None), Gone)


def test_a_job_that_ray_stopped_waiting_for_is_submitted_again(head, launch):
    runner = runner_for(head.url)
    runner.start(launch)
    head.set("job1-2", "FAILED", error_type="JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
    assert runner.poll(launch, None) == Alive()
    assert head.submissions["job1-2"]["status"] == "PENDING"
    assert len(head.bodies) == 2


def test_ray_is_asked_about_a_job_no_more_often_than_said(head, launch):
    head.set("job1-2", "RUNNING")
    runner = runner_for(head.url, look_seconds=3_600)
    for _ in range(5):
        assert runner.poll(launch, None) == Alive()
    assert head.count("GET") == 1
    end(launch)
    assert runner.poll(launch, None) == Outcome(0)


def test_while_a_head_is_away_only_one_caller_in_a_while_waits_for_it(head, launch, monkeypatch):
    monkeypatch.setattr("service.dispatch.ray_jobs.REST_SECONDS", 3_600.0)
    runner = runner_for(head.url)
    head.answer = (503, "starting")
    for number in range(3):
        with pytest.raises(OSError, match="503, starting"):
            runner.poll(replace(launch, job_id=f"job{number}"), None)
    assert head.count("GET") == 1


def test_a_wrong_token_is_named_and_never_shown(head, launch):
    runner = runner_for(head.url, RAY_AUTH_TOKEN="another-token")
    with pytest.raises(Infrastructure, match=r"refused the token.*Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH") as caught:
        runner.start(launch)
    assert isinstance(caught.value, OSError)
    broken = runner_for(head.url, RAY_AUTH_TOKEN="two\nlines")
    with pytest.raises(OSError, match="contains invalid characters") as caught:
        broken.poll(launch, None)
    assert "lines" not in str(caught.value)


def test_a_token_is_needed_unless_the_cluster_is_said_to_have_none(tmp_path, head, launch):
    with pytest.raises(InvalidInput, match="no token for the Ray cluster"):
        RayRunner(head.url, environ={}, home=tmp_path)
    RayRunner(head.url, environ={"RAY_AUTH_MODE": "disabled"}, home=tmp_path).close()
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("an-old-one")
    runner = RayRunner(head.url, environ={}, home=tmp_path)
    (tmp_path / ".ray" / "auth_token").write_text(f"{TOKEN}\n")  # changed while we run
    runner.start(launch)
    assert list(head.submissions) == ["job1-2"]


@pytest.mark.parametrize(
    "url", ["", "head:8265", "ray://head:10001", "http://", "http://a:b@head:8265", "http://head:port"]
)
def test_what_is_no_address_is_refused_at_once(url):
    with pytest.raises(InvalidInput, match="such as http://head:8265"):
        runner_for(url)
