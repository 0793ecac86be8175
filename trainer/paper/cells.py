"""Cells: one training run each, in a process of its own, kept as a small JSON file so that nothing is computed twice.

    docs/results/cells/<data set>/<row>/<seed>.json

A cell is fresh while the spec that its row asks for is the one it was computed with; else it is computed again. It
holds that spec whole, so that a field added later, with a default that changes nothing, ages no cell. Labels choose
nothing: settings are the presets', the probe's own L2 and epoch come from validation nodes, and test nodes are read
once per protocol.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import TrainSpec, parse_spec, spec_hash
from trainer.errors import Infrastructure, InvalidInput, OutOfMemory
from trainer.files.atomic import write_text
from trainer.paper.rows import PUBLIC_SPLIT, Row
from trainer.process.version import version
from trainer.run.directory import read_events

CURVES = ("i_nml", "i_nce", "weight_fn", "weight_tn", "loss")
MAPPED = ("grace", "nml-official")  # rows of which the paper shows a map, on MAPPED_SET
MAPPED_SET = "computers"
_MAP_NODES = 3_000
_BINS = 4  # digits that histograms and curves keep


@dataclass(frozen=True)
class Cell:
    """A row on a data set with a training seed."""

    dataset: str
    row: Row
    seed: int

    def file(self, folder: Path) -> Path:
        return folder / self.dataset / self.row.name / f"{self.seed}.json"

    def read(self, folder: Path) -> dict[str, Any] | None:
        """The finished cell, or None where there is none or its settings have changed since."""
        try:
            found: dict[str, Any] = json.loads(self.file(folder).read_text(encoding="utf-8"))
            computed = parse_spec(found.get("spec"))
        except (OSError, ValueError, InvalidInput):
            return None
        return found if spec_hash(computed) == spec_hash(self.row.spec(self.dataset, self.seed)) else None


def cells_of(datasets: Sequence[str], rows: Sequence[Row], seeds: int) -> Iterator[Cell]:
    """Seed by seed, so that tables fill evenly; a row without settings for a data set has no cell there."""
    for seed in range(seeds):
        for dataset in datasets:
            for row in rows:
                if dataset in row.datasets and _has_settings(row, dataset):
                    yield Cell(dataset, row, seed)


def _has_settings(row: Row, dataset: str) -> bool:
    try:
        row.spec(dataset, 0)
    except InvalidInput:
        return False
    return True


def compute(cell: Cell, folder: Path, runs: Path, *, deadline: float | None, say: Callable[[str], None]) -> bool:
    """Train and judge a cell and write its file; false where the deadline (time.monotonic) came first.

    The run is kept in `runs` until its cell is written: what a deadline or a kill interrupts goes on next time. A run
    that fails is written too, with the reason, and not tried again until its settings change or its file is removed.

    Raises:
        Infrastructure: the run could not be had here, such as for want of its data set; nothing is written.
    """
    spec = cell.row.spec(cell.dataset, cell.seed)
    run = runs / f"{cell.dataset}-{cell.row.name}-{cell.seed}-{spec_hash(spec)[:10]}"
    if not (run / "metrics.json").exists():
        run.parent.mkdir(parents=True, exist_ok=True)
        spec_file = run.with_suffix(".json")
        spec_file.write_text(spec.model_dump_json(), encoding="utf-8")
        code = _train(spec_file, run, deadline)
        if code is None:
            return False
        spec_file.unlink()
        if code not in (0, InvalidInput.exit_code, OutOfMemory.exit_code):
            raise Infrastructure(f"{cell.dataset} {cell.row.name} {cell.seed}: {_reason(run, code)}")
        if code:
            say(f"{cell.dataset} {cell.row.name} {cell.seed}: failed with code {code}")
            _write(cell, folder, spec, {"failed": _reason(run, code)})
            shutil.rmtree(run, ignore_errors=True)
            return True
    _write(cell, folder, spec, _figures(cell, run))
    shutil.rmtree(run)
    return True


def _train(spec_file: Path, run: Path, deadline: float | None) -> int | None:
    """Exit code of the training process; None where it was stopped at the deadline, with a checkpoint."""
    command = [sys.executable, "-m", "trainer", str(spec_file), "--out", str(run), "--resume"]
    with (run.parent / "log.txt").open("a") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            return process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait()
            return None
        except BaseException:  # such as Ctrl-C: leave no training behind
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise


def _reason(run: Path, code: int) -> str:
    try:
        last = (run / "log.txt").read_text(encoding="utf-8").strip().splitlines()[-1]
    except (OSError, IndexError):
        last = "no log"
    return f"code {code}: {last[-300:]}"


def _figures(cell: Cell, run: Path) -> dict[str, Any]:
    from trainer.evaluation.evaluate import evaluate_run

    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    quality = metrics["eval"]
    accuracy = {"clean": _probe(quality)}
    if cell.dataset not in PUBLIC_SPLIT:  # published figures use other random splits there
        for protocol in ("bgrl20", "pygcl_swap"):
            accuracy[protocol] = _probe(evaluate_run(run, protocol=protocol))
    clustering, pairs = quality["clustering"], quality["pairs"]
    mapped = cell.dataset == MAPPED_SET and cell.row.name in MAPPED and cell.seed == 0
    return {
        "seed": cell.seed, "split": quality["probe"]["split"],
        "accuracy": accuracy, "fmi": _percent(clustering["fmi"]["mean"]), "ari": _percent(clustering["ari"]["mean"]),
        "nmi": _percent(clustering["nmi"]["mean"]), "ratio": round(pairs["distance_ratio"], 2),
        "epochs": metrics["epoch"], "cpu_seconds": round(metrics["train_cpu_seconds"], 1),
        "peak_mb": round(metrics["peak_rss_mb"]), "histogram": _rounded(pairs["histogram"]), "curves": _curves(run),
        **({"map": draw_map(run / "embeddings")} if mapped else {}),
    }  # fmt: skip


def draw_map(embeddings: Path) -> dict[str, Any]:
    """t-SNE of a seeded sample of nodes, with their labels."""
    import numpy as np
    from sklearn.manifold import TSNE

    from trainer.export.embeddings import LABELS_FILE, read_embeddings

    vectors, _ = read_embeddings(embeddings)
    chosen = np.sort(np.random.default_rng(0).permutation(len(vectors))[:_MAP_NODES])
    rows = vectors[chosen]
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    points = TSNE(init="pca", random_state=0, perplexity=min(30, (len(unit) - 1) / 3)).fit_transform(unit)
    labels = np.load(embeddings / LABELS_FILE, allow_pickle=False)[chosen]
    return {"xy": np.round(points, 1).tolist(), "label": labels.tolist()}


def _probe(quality: dict[str, Any]) -> dict[str, float]:
    return {part: _percent(quality["probe"][part]) for part in ("val", "test")}


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _rounded(histogram: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [round(x, _BINS) for x in value] if isinstance(value, list) else value for key, value in histogram.items()
    }


def _curves(run: Path) -> dict[str, list[float]]:
    """Figures of the epochs that were diagnosed; those that training does not have are left out."""
    epochs = [event for event in read_events(run) if event["type"] == "epoch"]
    looked_at = [event for event in epochs if "weight_std" in event["metrics"]] or epochs[:: max(1, len(epochs) // 50)]
    curves = {
        key: [round(event["metrics"][key], _BINS) for event in looked_at if key in event["metrics"]] for key in CURVES
    }
    return {"epoch": [event["epoch"] for event in looked_at]} | {key: curve for key, curve in curves.items() if curve}


def _write(cell: Cell, folder: Path, spec: TrainSpec, figures: dict[str, Any]) -> None:
    """One line for each figure: there are hundreds of these files, and people compare them."""
    document = figures | {"version": version(), "spec_hash": spec_hash(spec), "spec": spec.model_dump(mode="json")}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    file = cell.file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, f"{{\n{lines}\n}}\n")
