"""`nml demo`: the whole service in a temporary home: start it, submit a job, watch it, look up its vectors, stop.

With --keep it goes on until Ctrl-C, so that one can look at the map in the console.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from service.cli.connect import say
from service.cli.demo_service import running_service
from service.cli.report import result_console
from service.cli.watch import INTERRUPTED, show_events
from trainer.errors import Infrastructure, TrainerError

if TYPE_CHECKING:
    from service.client import Client

EPOCHS = 40  # enough for clear neighbours; `nml submit` takes 100
PATIENCE = 60.0  # seconds without an answer: the service shares this very machine with the training
NODES = (7, 42, 1_000, 1_500)
CHECK_SECONDS = 2.0  # between looks at whether a kept service still answers


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="leave the service running until Ctrl-C, to look at the map")
    ] = False,
) -> None:
    """Start the service in a temporary directory, train on handwritten digits through it, and look at what came out."""
    with tempfile.TemporaryDirectory(prefix="nml-demo-") as place:
        home = Path(place)
        log = home / "service.log"
        try:
            with running_service(home, log) as url:
                _show(url)
                if keep:
                    _keep(url)
        except (TrainerError, OSError, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt):
                say("Interrupted; the service is stopped.")
                raise typer.Exit(INTERRUPTED) from None
            _print_tail(log)
            raise
    result_console().print("\nThe service is stopped and its directory removed; `nml serve` starts one that stays.")


def _show(url: str) -> None:
    """What a person would do: submit, watch, look."""
    from service.cli.job_report import print_metrics
    from service.client import Client

    console = result_console()
    console.print(f"The service answers at {url} (its documentation: {url}/docs). Watch it in the console: {url}/")
    console.print("Training on digits: 1,797 images of handwritten digits, linked to their nearest neighbours.")
    with Client(url, key="", patience=PATIENCE) as client:
        job = client.submit({"data": {"name": "digits"}, "optimiser": {"epochs": EPOCHS}}, name="demo")
        show_events(client, job, as_json=False)
        job = client.wait(job)
        print_metrics(job)
        console.print(f"Job {job.id} is MLflow run {job.mlflow_run_id}.")
        version = client.vectors.wait(job)
        console.print(f"Its embeddings are published: version {version.version}, {version.rows:,} × {version.dim}.")
        console.print("\nLooked up in the service, with the nearest neighbours by cosine:")
        console.print(_neighbours(client))
        console.print(f"\nWhile a service runs, anything can ask it: curl {url}/v1/embeddings/latest/nodes/42")


def _keep(url: str) -> None:
    """Returns when the person ends it with Ctrl-C.

    Raises:
        Infrastructure: the service has ended.
    """
    import httpx

    result_console().print(f"\nLook at the map: {url}/#/explore/latest\nThe service runs until you press Ctrl-C.")
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        try:
            while http.get("/livez").is_success:
                time.sleep(CHECK_SECONDS)
        except KeyboardInterrupt:
            return
        except httpx.TransportError as error:
            raise Infrastructure(f"the service at {url} does not answer any more: {error}") from error
    raise Infrastructure(f"the service at {url} is no longer well")


def _neighbours(client: Client, k: int = 8) -> Table:
    """A table of the k nearest nodes of each of NODES, with the digit each of them shows."""
    from sklearn.datasets import load_digits

    digits = load_digits().target  # node i shows digit i of scikit-learn's
    vectors = client.vectors.lookup("latest", NODES).vectors
    found = client.vectors.neighbors("latest", ids=NODES, k=k)
    title = f"its {k} nearest nodes (digit), cosine of the last"
    table = Table("node", "digit", title, "first 4 of its vector", box=None)
    for node, vector, ids, scores in zip(NODES, vectors, found.ids, found.scores, strict=True):
        nearest = ", ".join(f"{other} ({digits[int(other)]})" for other in ids)
        start = " ".join(f"{value:+.2f}" for value in vector[:4])
        table.add_row(str(node), str(digits[node]), f"{nearest}, {scores[-1]:.3f}", start)
    return table


def _print_tail(log: Path, lines: int = 30) -> None:
    """The end of what the service wrote, before its directory is removed."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if text.strip():
        say("The service wrote, at the end:")
        say("\n".join(text.splitlines()[-lines:]))
