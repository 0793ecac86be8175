"""Run a sweep: start the driver in a process of its own, hand on what it writes down, and end it when asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.errors import Cancelled, Infrastructure
from trainer.files.atomic import write_json
from trainer.files.journal import JournalReader, end_offset
from trainer.parallel.child import launched, meeting_place, raise_failure
from trainer.parallel.connection import LOCAL, python_path, ray_address, ray_environment, require_ray
from trainer.planning.cpus import usable_cpus
from trainer.process.stop_signals import StopRequest
from tuner.config import SweepSpec

POLL_SECONDS = 0.2
_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # CSV, JSON and TensorBoard files that nobody reads: we keep a journal
    "TUNE_GLOBAL_CHECKPOINT_S": "31536000",  # Tune's own state is not needed either, nor its pickles
    "TUNE_FORCE_TRIAL_CLEANUP_S": "5",  # seconds that a trial gets to end by itself
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "600",  # for a stopped trial to let go of its process, which the next one gets
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "86400",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # signals are the driver's
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # trials send messages (tuner.messages), not metrics
    "RAY_AIR_NEW_OUTPUT": "0",
}

_ON_THIS_MACHINE = {
    # Ray's own monitor ends trials in a way that Tune does not survive; the kernel ends Ray's workers first, one at a
    # time, and Tune knows what to make of that.
    "RAY_memory_monitor_refresh_ms": "0",
}


def run_sweep(
    spec: SweepSpec,
    directory: str | Path,
    *,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    start_seconds: float = 300.0,
) -> None:
    """Run `spec`, leave everything in `directory`, and return when at least one trial succeeded and all are done.

    Args:
        directory: a new or empty one, or one that holds this very sweep, which then goes on. On a cluster it must be
            on a file system that all nodes share.
        on_event: gets each line of the journal (tuner.journal) as it is written.
        start_seconds: how long to wait for Ray to answer.

    Raises:
        TrainerError: Cancelled after SIGTERM or SIGINT, once the trials have ended; InvalidInput for a spec, data or
            directory that does not do, and if no trial succeeded; Infrastructure for the rest. All but InvalidInput
            can be resumed.
    """
    require_ray("a sweep")
    sweep = Path(directory).absolute()
    address = ray_address(os.environ)
    environment = ray_environment(os.environ, address) | python_path(os.environ) | _SETTINGS
    if address == LOCAL:
        environment |= _ON_THIS_MACHINE
    try:
        sweep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Infrastructure(f"{sweep}: cannot write a sweep there ({error}). Choose another --out.") from error
    with StopRequest("ending the trials") as stop, meeting_place(sweep) as (room, temporary):
        job = {
            "spec": spec.model_dump(mode="json"), "sweep": str(sweep), "address": address,
            "cwd": os.getcwd(), "cpus": _cpus(spec), "start_seconds": start_seconds, "temporary": str(temporary),
            "init": {} if address == LOCAL else {"runtime_env": {"env_vars": _worker_variables()}},
        }  # fmt: skip
        write_json(room / "job.json", job)
        reader = JournalReader(sweep / "events.jsonl", end_offset(sweep / "events.jsonl"))
        with launched("tuner.driver", room, environment) as driver:
            _accompany(driver, reader, on_event, stop.is_set)
            if stop.is_set() and not (room / "outcome.json").exists():
                raise Cancelled("stopped on request before Ray had started; the same command goes on")
            raise_failure(room, driver.returncode)


def _accompany(
    driver: subprocess.Popen[bytes], reader: JournalReader, on_event: Callable[[dict[str, Any]], None],
    should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Hand on events until the driver has ended; ask it to end when we are asked to."""
    asked = False
    while True:
        ended = driver.poll() is not None  # before reading: what was written by then is read
        for event in reader.new_events():
            on_event(event)
        if ended:
            return
        if should_stop() and not asked:
            asked = True
            driver.send_signal(signal.SIGTERM)
        time.sleep(POLL_SECONDS)


def _cpus(spec: SweepSpec) -> int | None:
    """CPUs of a Ray on this machine: what there is, or what so many trials at a time were asked to share."""
    if spec.concurrency is None:
        return None
    return max(usable_cpus(), spec.concurrency * spec.resources.cpus)


def _worker_variables() -> dict[str, str]:
    """What workers on other machines would not know."""
    own = {name: value for name, value in os.environ.items() if name.startswith("NML_")}
    return own | {name: value for name, value in _SETTINGS.items() if name == "TUNE_FUNCTION_THREAD_TIMEOUT_S"}
