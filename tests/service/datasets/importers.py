"""What dispatchers do with imports, for tests of everything before and after: take the job, run the importer, conclude.

Importers are real processes. Most tests fork them from a server that has loaded the libraries (a start of milliseconds
instead of seconds); those about the process itself start it as a dispatcher would.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from service.datasets.imports import conclude_import
from service.settings import Settings
from service.store import Store
from service.store.records import Claim

PRELOADED = [__name__, "torch", "trainer.data.importing.graph", "trainer.data.importing.about", "trainer.data.store"]


class Outcome(NamedTuple):
    exit_code: int
    kind: str | None = None
    message: str | None = None


Importer = Callable[[Path, Path], Outcome]  # spec file, home


def start_process(spec: Path, home: Path) -> Outcome:
    """Run the importer as a dispatcher does, and read what it reports."""
    reading, writing = os.pipe()
    environment = {**os.environ, "NML_HOME": str(home), "NML_OUTCOME_FD": str(writing), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainer.data.importing", str(spec)]
    done = subprocess.run(command, env=environment, pass_fds=[writing], capture_output=True, check=False)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return _outcome(done.returncode, pipe.read())


def fork_process(spec: Path, home: Path) -> Outcome:
    """The same from a process that has loaded everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_import, args=(str(spec), str(home), theirs))
    process.start()
    theirs.close()
    try:
        code, said = ours.recv()
    except EOFError:
        code, said = 1, b""
    process.join()
    return _outcome(code, said)


def _import(spec: str, home: str, answer: Connection) -> None:
    from trainer.data.importing.__main__ import main

    reading, writing = os.pipe()
    os.environ |= {"NML_HOME": home, "NML_OUTCOME_FD": str(writing)}
    code = main([spec])
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer.send((code, pipe.read()))


def _outcome(code: int, said: bytes) -> Outcome:
    document: dict[str, Any] = json.loads(said) if said else {}
    return Outcome(code, document.get("kind"), document.get("message"))


def import_next(store: Store, settings: Settings, importer: Importer = fork_process) -> Outcome | None:
    """Run the first import in the queue to its end; none if there is none."""
    job = store.claims.claim("test", kinds=("import",), lease_seconds=60)
    if job is None:
        return None
    folder = settings.job_directory(job.id)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(job.spec))
    outcome = importer(folder / "spec.json", settings.home)
    failure = None if outcome.exit_code == 0 else outcome.message or "the process reported no error"
    conclude_import(job, store, settings, failure=failure)
    if failure is None:
        store.claims.finish(Claim.on(job), "succeeded")
    else:
        kind = outcome.kind or "infra"
        store.claims.finish(Claim.on(job), "failed", failure_kind=kind, failure_message=failure)
    return outcome


@contextmanager
def importing(store: Store, settings: Settings, importer: Importer = fork_process) -> Iterator[None]:
    """Imports are done while this lasts."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            store.dispatchers.beat("test", host="here", pid=os.getpid(), info={})
            while import_next(store, settings, importer) is not None:
                pass
            ended.wait(0.02)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)
