"""The environment tests run in: a home of their own, nothing left over from the shell, one thread per test process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """What must be set before test modules are imported: `skipif` reads NML_DATA, torch reads OMP_NUM_THREADS."""
    beside = ROOT.parent / "shared" / "datasets"
    if beside.is_dir():
        os.environ.setdefault("NML_DATA", str(beside))
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    for number in (signal.SIGINT, signal.SIGHUP):
        # Under `nohup`, or in the background of a script, what tests start would ignore these signals too. A handler,
        # other than being ignored, is not inherited.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing a test does may touch the developer's runs or tracker; processes it starts inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NML_HOME", str(tmp_path_factory.mktemp("nml-home")))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The project's root folder."""
    return ROOT
