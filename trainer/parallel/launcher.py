"""The process that talks to Ray: `python -m trainer.parallel.launcher ROOM`, started by `fit_parallel`.

It trains on Ray Train what ROOM/job.json says (trainer.parallel.child).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from trainer.errors import Infrastructure, InvalidInput, OutOfMemory, TrainerError
from trainer.parallel.child import main
from trainer.parallel.cluster import connected
from trainer.parallel.connection import LOCAL
from trainer.process.version import version

_LOST_CONNECTION = ("Connection closed", "Connection reset", "Broken pipe")  # gloo's and NCCL's words
GROUP_SECONDS = 7_200  # longest wait of one worker for another; the death of a worker is noticed by Ray, not by this


@dataclass(frozen=True)
class Share:
    """What each worker gets of the cluster."""

    threads: int
    gpu: bool


def work(job: Mapping[str, Any], room: Path) -> None:
    """Train on the cluster that the job names."""
    with connected(job, room):
        _train(job, _share(job), room)


def _train(job: Mapping[str, Any], share: Share, room: Path) -> None:
    """Run all workers to the end; the TrainerError of a worker comes out as it is."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
    from ray.train import TrainingFailedError as RayFailure
    from ray.train.torch import TorchConfig, TorchTrainer

    from trainer.parallel.local_group import local_torch_config
    from trainer.parallel.worker import run_worker

    class EndOnOurErrors(UserCallback):
        """Ray retries whatever a worker raises, unless this raises too: what we have diagnosed stays diagnosed."""

        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            if error := diagnosed(worker_exceptions):
                raise error
            Path(job["started"]).unlink(missing_ok=True)

    retries, local = job["max_failures"], _on_this_machine(job["address"])
    group: dict[str, Any] = {"backend": "nccl" if share.gpu else "gloo", "timeout_s": GROUP_SECONDS}
    trainer = TorchTrainer(
        run_worker,
        train_loop_config=dict(job),
        torch_config=local_torch_config(Path(job["temporary"]), **group) if local else TorchConfig(**group),
        scaling_config=ScalingConfig(
            num_workers=job["workers"], use_gpu=share.gpu, resources_per_worker={"CPU": 1, "GPU": int(share.gpu)}
        ),
        run_config=RunConfig(
            name="run", storage_path=str(room / "storage"), callbacks=[EndOnOurErrors()],
            failure_config=FailureConfig(max_failures=retries, controller_failure_limit=retries),
            worker_runtime_env={"env_vars": _worker_environment(share, local=local)},
        ),
    )  # fmt: skip
    try:
        trainer.fit()
    except RayFailure as error:
        cause = getattr(error, "controller_failure", None)
        if isinstance(cause, TrainerError):
            raise cause from None
        traceback.print_exc()
        raise Infrastructure(
            f"workers failed, also after {retries} restarts:\n{summary(error, job['workers'])}"
        ) from error


def diagnosed(failures: Mapping[int, Exception]) -> TrainerError | None:
    """The error that a worker raised for us to see, if there is one; a lost worker is for Ray to retry."""
    from ray.exceptions import OutOfMemoryError

    for rank in sorted(failures):
        error = failures[rank]
        if isinstance(error, TrainerError):
            return error
        if isinstance(error, ImportError):
            return InvalidInput(
                f"worker {rank} cannot import what it needs ({error}). "
                f"Install nml-gcl[train] {version()} on every node of the cluster."
            )
        if isinstance(getattr(error, "health_check_failure", None), OutOfMemoryError | MemoryError):
            return OutOfMemory(
                f"Ray ended worker {rank}, since its node ran out of memory. Use fewer workers per node, or lower "
                "sampling.batch_size, sampling.keep_mb or sampling.tile."
            )
    return None


def summary(error: Exception, workers: int) -> str:
    """A line per failed worker, those that vanished first: the others mostly fail because of them.

    Ray may hear of a lost connection before it knows who is gone; then it is one of those that said nothing.
    """
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    lost = [rank for rank, failure in failures.items() if hasattr(failure, "health_check_failure")]
    lines = [f"worker {rank}: its process or node is gone" for rank in lost]
    quiet = [str(rank) for rank in range(workers) if rank not in failures]
    if quiet and not lost and any(words in str(each) for each in failures.values() for words in _LOST_CONNECTION):
        lines = [f"worker {' or '.join(quiet[:5])}: said nothing; its process or node is gone"]
    for rank in sorted(failures.keys() - set(lost)):
        text = str(failures[rank]).strip().splitlines() or [""]
        lines.append(f"worker {rank}: {type(failures[rank]).__name__}: {text[0]}")
    return "\n".join(lines[:5]) or str(error)


def _share(job: Mapping[str, Any]) -> Share:
    """Divide the cluster among the workers.

    Raises:
        InvalidInput: this machine is too small for so many.
        Infrastructure: the cluster is, at the moment.
    """
    import ray

    resources, workers, spec = ray.cluster_resources(), job["workers"], job["spec"]["run"]
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    place = "this machine" if job["address"] == LOCAL else f"the Ray cluster at {job['address']}"
    too_small = InvalidInput if job["address"] == LOCAL else Infrastructure
    if cpus < workers:
        raise too_small(
            f"run.workers is {workers}, and {place} has {cpus} CPUs, of which each worker needs one. "
            f"Set run.workers to at most {max(cpus, 1)}, or RAY_ADDRESS to a larger cluster."
        )
    if spec["device"] == "cuda" and gpus < workers:
        raise too_small(
            f"run.workers is {workers} with run.device cuda, and {place} has {gpus} GPUs, of which each worker needs "
            "one. Lower run.workers, or set run.device to cpu."
        )
    return Share(threads=spec["threads"] or cpus // workers, gpu=spec["device"] != "cpu" and gpus >= workers)


def _on_this_machine(address: str) -> bool:
    """Whether all of the cluster is: a node known by a loopback address is one that no other machine can join."""
    import ray

    return address == LOCAL or all(ip_address(node["NodeManagerAddress"]).is_loopback for node in ray.nodes())


def _worker_environment(share: Share, *, local: bool) -> dict[str, str]:
    """Threads, data folders of the user, and for a local run no traffic but on loopback."""
    own = {name: value for name, value in os.environ.items() if name.startswith("NML_")}
    own |= {"OMP_NUM_THREADS": str(share.threads), "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    if not share.gpu:
        own["CUDA_VISIBLE_DEVICES"] = ""
    if local and sys.platform == "linux":
        own |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return own


if __name__ == "__main__":
    main(Path(sys.argv[1]), work)
