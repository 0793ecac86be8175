"""The folder of a version: which files it holds, and the document that vouches for them.

    vectors.npy            float32 [rows, dim]: the run's own file, linked, so that it takes no space twice
    ids.npy | ids.json     the ids in row order as the run wrote them: int64 [rows], or a list of texts
    labels.npy             int32 [rows], number of a row's class, -1 none; only where the graph has labels
    encoder.safetensors    the trained encoder; only where the run exported it
    spec.json              the run's spec
    inverse_norms.npy      float32 [rows], 1 / |vector|, 0 for a zero vector or one shorter than 2⁻¹⁰⁰
    ids.*                  where a row is found by its id (service.embeddings.id_index)
    version.json           VersionInfo; written last, before the folder gets its name
    index.<kind>.faiss, index.<kind>.json, download.parquet    made later, each atomically

A folder under its name is complete, and all files but those made later never change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

VERSION_FILE = "version.json"
VECTORS = "vectors.npy"
INVERSE_NORMS = "inverse_norms.npy"
LABELS = "labels.npy"
ENCODER = "encoder.safetensors"
SPEC = "spec.json"
DOWNLOAD = "download.parquet"
FORMAT = 1

IndexKind = Literal["hnsw", "ivf"]
IdType = Literal["int", "str"]


@dataclass(frozen=True)
class VersionInfo:
    """What a version is; `files` has the SHA-256 of every file that was there when it was published."""

    version: str
    rows: int
    dim: int
    id_type: IdType
    classes: tuple[str, ...] | None  # of labels.npy; none: no labels
    has_encoder: bool
    bytes: int  # of all these files together, linked ones too
    files: dict[str, str]
    export: dict[
        str, Any
    ]  # the export's manifest without its files and classes: dataset, epoch, model_sha256, graph_sha256, …


def ids_file(info: VersionInfo) -> str:
    """Name of the file with the ids in row order, which can be downloaded."""
    return ids_file_of(info.id_type)


def ids_file_of(id_type: IdType) -> str:
    return "ids.npy" if id_type == "int" else "ids.json"


def index_files(kind: IndexKind) -> tuple[str, str]:
    """Names of an index and of the document about it."""
    return f"index.{kind}.faiss", f"index.{kind}.json"


def as_document(info: VersionInfo) -> dict[str, Any]:
    """VersionInfo as version.json holds it."""
    return {"format": FORMAT, **asdict(info)}


def read_info(directory: Path) -> VersionInfo:
    """What version.json says.

    Raises:
        OSError: there is none.
        ValueError: it is of a form that this program does not know.
    """
    path = directory / VERSION_FILE
    document = json.loads(path.read_bytes())
    try:
        if document.pop("format") != FORMAT:
            raise ValueError("another format")
        classes = document["classes"]
        info = VersionInfo(**document | {"classes": None if classes is None else tuple(map(str, classes))})
        if not (info.id_type in ("int", "str") and min(int(info.rows), int(info.dim)) > 0 and VECTORS in info.files):
            raise ValueError("values that cannot be")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: is not the document of a version ({type(error).__name__}: {error})") from error
    return info
