"""`nml demo`: train on the built-in graph and look at what came out."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rich.table import Table

from service.cli.report import result_console
from service.cli.train import assemble, run_training

EPOCHS = 40  # enough for clear neighbours; `nml train` takes 100


def demo() -> None:
    """Train on handwritten digits in a temporary directory, then print nearest neighbours of a few nodes."""
    console = result_console()
    with tempfile.TemporaryDirectory(prefix="nml-demo-") as home:
        os.environ["NML_HOME"] = home
        run = Path(home) / "run"
        console.print("Training on digits: 1,797 images of handwritten digits, linked to their nearest neighbours.")
        run_training(assemble(None, "digits", None, [f"optimiser.epochs={EPOCHS}"]), run, resume=False, as_json=False)
        console.print("\nNearest neighbours by cosine of the learned embeddings:")
        console.print(_neighbours(run, ["7", "42", "1000", "1500"]))
        console.print("\nThe temporary run is removed now; `nml train --out DIR` keeps one.")


def _neighbours(run: Path, nodes: list[str], k: int = 8) -> Table:
    """A table of the k nearest nodes of each given node id, with the digit each of them shows."""
    import numpy as np

    from trainer.config import DataSpec
    from trainer.datasets import load
    from trainer.run.export import read_embeddings

    vectors, ids = read_embeddings(run / "embeddings")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    graph = load(DataSpec(name="digits"))
    assert graph.y is not None
    row_of = {str(node): row for row, node in enumerate(ids)}
    table = Table(
        "node", "digit", f"its {k} nearest nodes (digit), cosine of the last", "first 4 of its vector", box=None
    )
    for node in nodes:
        row = row_of[node]
        similarity = unit @ unit[row]
        similarity[row] = -np.inf
        nearest = np.argsort(-similarity)[:k]
        found = ", ".join(f"{ids[other]} ({int(graph.y[other])})" for other in nearest)
        start = " ".join(f"{value:+.2f}" for value in vectors[row, :4])
        table.add_row(node, str(int(graph.y[row])), f"{found}, {similarity[nearest[-1]]:.3f}", start)
    return table
