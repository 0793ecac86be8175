"""The command, environment and limits of a job, in our own words and paths; what the user wrote is in spec.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.dispatch.runner import MARKER, PYTHON, LaunchSpec, write_whole
from service.settings import Settings
from service.store.records import Job
from trainer.parallel.connection import python_path
from trainer.planning.cpus import usable_cpus

_MODULE = (PYTHON, "-P", "-m")  # -P: a file in the current folder must not shadow a module
_MACHINE = ("PATH", "HOME", "LANG", "TMPDIR", "CUDA_VISIBLE_DEVICES")
_OURS = ("NML_DATA",)
# Prefixes. A tracker may need a user and a password; what concerns its server, such as its database, is not for jobs.
_TRACKER = ("MLFLOW_TRACKING_", "MLFLOW_HTTP_", "MLFLOW_S3_", "MLFLOW_DISABLE_TELEMETRY")
_RAY = ("RAY_",)


@dataclass(frozen=True)
class JobCommands:
    """Makes launch specs. Only tests replace the commands.

    Args:
        environ: the dispatcher's own environment, of which only names listed here are passed on. The service's
            database and its password never are.
    """

    settings: Settings
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    train: tuple[str, ...] = (*_MODULE, "trainer")
    sweep: tuple[str, ...] = (*_MODULE, "tuner")
    imports: tuple[str, ...] = (*_MODULE, "trainer.data.importing")
    vectors: tuple[str, ...] = (*_MODULE, "service.embeddings")

    def launch_spec(self, job: Job) -> LaunchSpec:
        """The launch spec of the job's present attempt."""
        settings, cpus = self.settings, self._cpus(job)
        directory = settings.job_directory(job.id)
        on_ray = settings.runner == "ray"
        own = {MARKER: f"{job.id}.{job.attempt}", "OMP_NUM_THREADS": str(cpus)}
        if job.kind == "train" and job.attempt == 1:
            own["NML_SUBMITTED"] = repr(job.created)
        if job.kind in ("import", "publish", "index"):
            own["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the default one reserves a gigabyte that the limit counts
        return LaunchSpec(
            job.id, job.attempt, self._argv(job, str(directory / "spec.json")),
            {**self.environment(), **own}, directory,
            # A sweep plans the memory of its trials itself, and each of Ray's own processes would get the limit; on a
            # cluster the trials are elsewhere. The figure of an index says what fits beside it, and may be less than it
            # needs (service.embeddings.jobs.index_job): as a limit it would end a build that has the machine to itself.
            memory_bytes=None if job.kind == "sweep" or (job.kind == "index" and not on_ray) else job.memory_bytes,
            cpus=cpus, gpus=1 if _run(job).get("device") == "cuda" else 0,
            heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds, stop_seconds=settings.stop_grace_seconds,
            # what depends on the machine comes from the node
            inherit=(*_MACHINE, "PYTHONPATH", "LD_LIBRARY_PATH", "HIP_", "ROCR_", *_RAY) if on_ray else (),
        )  # fmt: skip

    def write_spec(self, job: Job) -> None:
        """Write what the command reads.

        Raises:
            OSError: such as a full disk.
        """
        directory = self.settings.job_directory(job.id)
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / "spec.json", json.dumps(job.spec))

    def environment(self) -> dict[str, str]:
        """The whole environment that every process of a job shares."""
        own = {"NML_HOME": str(self.settings.home), "MLFLOW_TRACKING_URI": self.settings.tracking_uri}
        passed = _chosen(self.environ, _OURS, _TRACKER)
        if self.settings.runner == "ray":
            return passed | own
        return _chosen(self.environ, _MACHINE, _RAY) | python_path(self.environ) | passed | own

    def _argv(self, job: Job, spec: str) -> tuple[str, ...]:
        run = str(self.settings.run_directory(job.id))
        match job.kind:
            case "train":
                # The limit with which the job was planned when it was submitted, so that the plan is the same.
                limit = ("--memory-limit", str(self.settings.memory_bytes))
                shrunk = ("--shrunk", str(job.oom_retries)) if job.oom_retries else ()
                return (*self.train, spec, "--out", run, "--resume", *limit, *shrunk)
            case "sweep":
                return (*self.sweep, spec, "--out", run)
            case "import":
                return (*self.imports, spec)
            case "publish" | "index":
                return (*self.vectors, spec)

    def _cpus(self, job: Job) -> int:
        """CPUs that a job uses: as many threads as it asks for, else its share of the machine."""
        asked = _run(job).get("threads")
        if asked:
            return int(asked)
        given = self.environ.get("OMP_NUM_THREADS", "")
        if given.isdigit() and int(given) > 0:
            return int(given)
        if self.settings.runner == "ray" or job.kind in ("import", "publish"):
            return 1
        return max(1, usable_cpus() // self.settings.slots)


def _run(job: Job) -> dict[str, Any]:
    document = job.spec.get("run") if job.kind == "train" else None
    return document if isinstance(document, dict) else {}


def _chosen(environ: Mapping[str, str], names: tuple[str, ...], beginnings: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in names or name.startswith(beginnings)}
