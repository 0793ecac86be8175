"""`python -m service.dispatch`: one dispatcher, with settings from the environment, until SIGTERM."""

from __future__ import annotations

import importlib.util
import logging
import sys

from service.dispatch.dispatcher import Dispatcher
from service.dispatch.local import LocalRunner
from service.dispatch.runner import Runner
from service.embeddings.scrubber import Scrubber
from service.private_home import create_private_files
from service.settings import Settings
from service.store import Store, open_store
from service.store.errors import Unavailable
from trainer.errors import TrainerError
from trainer.process.stop_signals import SERVICE_SIGNALS, StopRequest

WAIT_SECONDS = 1.0  # between attempts to reach the database at the start
log = logging.getLogger("service.dispatch")


def make_runner(settings: Settings) -> Runner:
    """The runner that the settings name.

    Raises:
        InvalidInput: Ray's address or token is missing or wrong.
    """
    if settings.runner == "ray":
        from service.dispatch.ray import RayRunner

        return RayRunner(settings.ray_jobs_url or "")
    return LocalRunner()


def main() -> int:
    """Dispatch until SIGTERM, SIGINT or SIGHUP; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    stop = StopRequest(signals=SERVICE_SIGNALS, on_repeat=lambda: None)
    stop.listen()
    create_private_files()
    settings = Settings()
    if importlib.util.find_spec("mlflow") is None:
        log.warning(
            "the MLflow client is not installed, so runs of killed trainers stay open in MLflow. "
            "Run pip install 'nml-gcl[track]'."
        )
    try:
        runner = make_runner(settings)
        store = _wait_for_store(settings, stop)
    except TrainerError as error:  # such as a newer database or a missing token: no traceback
        log.error("cannot start: %s", error)
        return error.exit_code
    if store is None:
        return 0
    scrubber = Scrubber(store, settings)
    try:
        scrubber.start()
        Dispatcher(settings, store, runner).run(stop)
    finally:
        scrubber.stop()
        store.close()
    return 0


def _wait_for_store(settings: Settings, stop: StopRequest) -> Store | None:
    """The store, as soon as its database answers; None if we are asked to stop first."""
    has_warned = False
    while not stop.is_set():
        try:
            return open_store(settings)
        except Unavailable as error:
            if not has_warned:
                log.warning("waiting for the database: %s", error)
            has_warned = True
            stop.wait(WAIT_SECONDS)
    return None


if __name__ == "__main__":
    sys.exit(main())
