"""Small tables of embeddings: an export as a training run leaves it, and the version published from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.embeddings.publish import build_version
from service.embeddings.table import Table

VERSION = "01k9vect0rs000000000000000"  # of the form of a job's id

Ids = Literal["int", "str", "shuffled"] | Sequence[int] | Sequence[str]


def make_export(
    path: Path,
    rows: int = 100,
    dim: int = 8,
    ids: Ids = "int",
    labels: int | Sequence[int] | None = None,
    seed: int = 0,
    *,
    vectors: NDArray[np.float32] | None = None,
    classes: Sequence[str] | None = None,
    encoder: bytes | None = None,
    dataset: str = "synthetic",
    **manifest: Any,
) -> Path:
    """Write the run directory `path`: spec.json, and embeddings/ with vectors, ids, labels, manifest. Returns `path`.

    Args:
        ids: "int" is 0..rows-1, "shuffled" distinct integers in no order (some negative, some huge), "str" texts of
            many kinds; or the ids themselves.
        labels: how many classes ("class 0", …; about a tenth of the rows has none, -1), or the class of each row.
        vectors: instead of normal numbers from `seed`; decides rows and dim.
        encoder: bytes of encoder.safetensors; none: an export without it.
        manifest: what else its manifest says, or says differently.
    """
    random = np.random.default_rng(seed)
    if vectors is None:
        vectors = random.standard_normal((rows, dim), dtype=np.float32)
    rows, dim = vectors.shape
    directory = path / "embeddings"
    directory.mkdir(parents=True)
    np.save(directory / "vectors.npy", vectors)
    named = make_ids(rows, ids, seed)
    text = isinstance(named[0], str)
    if text:
        lines = ",\n".join(json.dumps(name, ensure_ascii=False) for name in named)
        (directory / "ids.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
    else:
        np.save(directory / "ids.npy", np.array(named, np.int64))
    document: dict[str, Any] = {"rows": rows, "dim": dim, "dtype": "float32", "id_type": "str" if text else "int"}
    if labels is not None:
        if isinstance(labels, int):
            count = labels
            numbers = np.where(random.random(rows) < 0.1, -1, random.integers(0, count, rows))
        else:
            numbers = np.array(labels)
            count = int(numbers.max()) + 1
        np.save(directory / "labels.npy", numbers.astype(np.int32))
        document["classes"] = list(classes) if classes else [f"class {number}" for number in range(count)]
    if encoder is not None:
        (directory / "encoder.safetensors").write_bytes(encoder)
    document["files"] = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(directory.iterdir())
    }
    document |= {"model_sha256": "0" * 64, "graph_sha256": "1" * 64, "dataset": dataset, "epoch": 1, **manifest}
    (directory / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    (path / "spec.json").write_text(json.dumps({"data": {"name": dataset}}), encoding="utf-8")
    return path


def make_ids(rows: int, ids: Ids, seed: int = 0) -> list[int] | list[str]:
    """The ids that `make_export` gives its rows."""
    if ids == "int":
        return list(range(rows))
    if ids == "shuffled":
        random = np.random.default_rng(seed + 1)
        spread = np.arange(rows, dtype=np.int64) * 7 - 3 * rows
        spread[rows // 2 :] += 1 << 60
        return random.permutation(spread).tolist()
    if ids == "str":
        forms = ("paper-{}", "{}", "00{}", "ü/{} ", '日本 "{}"\n')
        return [forms[row % len(forms)].format(row) for row in range(rows)]
    assert not isinstance(ids, str)
    return list(ids)  # type: ignore[return-value]


def publish(run: Path, home: Path, version: str = VERSION) -> Path:
    """Build the version of a run into home/embeddings/<version>, as the job does; returns that folder."""
    target = home / "embeddings" / version
    build_version(run / "embeddings", run / "spec.json", target, version=version)
    return target


def make_table(path: Path, *arguments: Any, version: str = VERSION, **options: Any) -> Table:
    """`make_export` into path/runs/<version>, published into path/embeddings/<version>: `path` is a home (NML_HOME)."""
    run = make_export(path / "runs" / version, *arguments, **options)
    return Table.open(publish(run, path, version))
