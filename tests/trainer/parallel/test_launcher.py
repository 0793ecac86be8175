"""What the failures of workers mean: ours come out as they are, lost workers are Ray's to start again."""

from __future__ import annotations

from trainer.errors import InvalidInput, NonFinite, OutOfMemory
from trainer.parallel.launcher import diagnosed, summary


class Lost(Exception):
    """As Ray Train reports a worker whose process does not answer."""

    def __init__(self, cause: Exception):
        super().__init__("A worker health check failed.")
        self.health_check_failure = cause


def test_lost_workers_and_unknown_errors_are_left_to_ray():
    assert diagnosed({0: RuntimeError("Connection closed by peer"), 1: Lost(RuntimeError("died"))}) is None


def test_our_own_error_counts_even_if_others_failed_because_of_it():
    ours = NonFinite("nan")
    assert diagnosed({0: RuntimeError("Connection closed by peer"), 2: ours}) is ours


def test_worker_that_ray_ended_for_its_memory_is_out_of_memory():
    from ray.exceptions import OutOfMemoryError

    assert isinstance(diagnosed({1: Lost(OutOfMemoryError("node is full"))}), OutOfMemory)


def test_missing_package_on_a_node_is_named():
    error = diagnosed({0: ModuleNotFoundError("No module named 'torch_geometric'")})
    assert isinstance(error, InvalidInput)
    assert "torch_geometric" in str(error)


def test_summary_names_the_lost_worker_first():
    error = Exception("many lines of Ray")
    error.worker_failures = {0: RuntimeError("closed by peer\nmore"), 1: Lost(RuntimeError("died"))}
    assert summary(error, 3).splitlines() == [
        "worker 1: its process or node is gone",
        "worker 0: RuntimeError: closed by peer",
    ]
    assert summary(Exception("no room in the cluster"), 2) == "no room in the cluster"


def test_summary_names_the_worker_that_ray_did_not_yet_miss_when_another_lost_its_connection():
    error = Exception("many lines of Ray")
    closed = RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:4711")
    error.worker_failures = {0: closed}
    first, second = summary(error, 2).splitlines()
    assert first == "worker 1: said nothing; its process or node is gone"
    assert second.startswith("worker 0: RuntimeError: ")
    assert summary(error, 3).startswith("worker 1 or 2: ")
    error.worker_failures = {0: ValueError("our own mistake")}
    assert summary(error, 2) == "worker 0: ValueError: our own mistake", "the others were merely ended"
