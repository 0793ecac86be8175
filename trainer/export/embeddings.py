"""Embeddings on disk, by the user's own node ids, and a manifest with checksums.

vectors.npy            float32 [N, dim]
ids.npy | ids.json     the ids of these rows: whole numbers | text
labels.npy             int32 [N], -1 without a label, where the graph has labels; the manifest's "classes" names them.
                       They are the user's own, kept to filter and to compare with: no vector depends on them
encoder.safetensors    the weights; with the run's spec.json they make the encoder again (`read_encoder`)
manifest.json          comes last and vouches for all of these

Nothing is ever held whole: vectors are computed, checked and written in pieces (trainer.export.layerwise); ids, labels
and checksums are streamed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.export.layerwise import Progress, embed_layerwise, model_digest
from trainer.export.scratch import discard_scratch
from trainer.files.atomic import sha256, write_atomically, write_json
from trainer.files.mapped import pieces, release
from trainer.files.npy import NpyWriter, write_npy
from trainer.nn.encoder import Encoder
from trainer.spec.encoder import EncoderSpec

ENCODER_FILE = "encoder.safetensors"
LABELS_FILE = "labels.npy"
_TEXT_ID_BYTES = 200  # an id as Python text, with its JSON


def export_embeddings(
    directory: Path,
    encoder: Encoder,
    graph: Graph,
    *,
    graph_sha256: str,
    rows: range | None = None,
    buffer_mb: int = 256,
    progress: Progress | None = None,
    **provenance: Any,
) -> Path:
    """Write float32 vectors [N, dim] with ids in the same order; and all else that the module names.

    Integer ids go to ids.npy, string ids to ids.json: neither needs unpickling. Killed at any point, the same call
    goes on where it was (see `embed_layerwise`, also for rows, buffer_mb and progress).

    Args:
        graph_sha256: `graph.fingerprint()`, by which unfinished work is recognised; it goes into the manifest.
        provenance: whatever else the manifest should say (JSON).

    Returns:
        The path of vectors.npy.

    Raises:
        NonFinite: a vector holds NaN or infinity; there is then no manifest, not even an earlier one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    manifest_file, vectors_file = directory / "manifest.json", directory / "vectors.npy"
    manifest_file.unlink(missing_ok=True)  # it must never vouch for files of an earlier export
    digest = model_digest(encoder)
    embed_layerwise(
        encoder, graph, vectors_file, model_digest=digest, graph_digest=graph_sha256, rows=rows, buffer_mb=buffer_mb,
        progress=progress, keep_record=True,
    )  # fmt: skip
    ids = graph.ids if rows is None else graph.ids[rows.start : rows.stop]
    is_int = ids.dtype.kind == "i"
    ids_file = directory / ("ids.npy" if is_int else "ids.json")
    write_atomically(
        ids_file,
        lambda path: write_npy(path, ids, release=graph.release) if is_int else _write_text(path, ids),
    )
    labels_file, encoder_file = directory / LABELS_FILE, directory / ENCODER_FILE
    labels = None if graph.y is None else (graph.y if rows is None else graph.y[rows.start : rows.stop]).numpy()
    if labels is None:
        labels_file.unlink(missing_ok=True)  # of an earlier export
    else:
        write_atomically(labels_file, lambda path: _write_labels(path, labels, graph))
    write_atomically(encoder_file, lambda path: _write_encoder(path, encoder, digest))
    files = [vectors_file, ids_file, *([] if labels is None else [labels_file]), encoder_file]
    manifest = {
        "rows": len(ids), "dim": encoder.dim, "dtype": "float32",
        "id_type": "int" if is_int else "str",
        "files": {file.name: sha256(file) for file in files},
        "model_sha256": digest, "graph_sha256": graph_sha256, **provenance,
    }  # fmt: skip
    if labels is not None:
        manifest["classes"] = list(graph.classes)
    write_json(manifest_file, manifest)
    discard_scratch(vectors_file)
    return vectors_file


def read_embeddings(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Memory-mapped vectors and the ids of their rows.

    Raises:
        InvalidInput: there is no finished export, or a file is not the one the manifest vouches for.
    """
    manifest_file = directory / "manifest.json"
    if not manifest_file.exists():
        raise InvalidInput(f"{directory}: holds no finished embeddings. Finish the run with `nml train --resume`.")
    manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
    for name, checksum in manifest["files"].items():
        if sha256(directory / name) != checksum:
            raise InvalidInput(f"{directory / name}: differs from the checksum in manifest.json. Export it again.")
    vectors = np.load(directory / "vectors.npy", mmap_mode="r", allow_pickle=False)
    if manifest["id_type"] == "int":
        return vectors, np.load(directory / "ids.npy", allow_pickle=False)
    return vectors, np.array(json.loads((directory / "ids.json").read_text(encoding="utf-8")))


def read_encoder(file: Path, spec: EncoderSpec) -> Encoder:
    """The encoder of an export, in eval mode on the CPU, in the precision it was trained in.

    Args:
        spec: `encoder` of the run's spec.json.

    Raises:
        InvalidInput: the file cannot be read, or holds no encoder of this spec.
    """
    try:
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        encoder = Encoder(int(about["features"]), spec, generator=torch.Generator())
        encoder = encoder.to(getattr(torch, about["dtype"]))
        encoder.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, ValueError, AttributeError, RuntimeError) as error:
        raise InvalidInput(f"{file}: holds no encoder of this spec ({error}). Export it again.") from error
    return encoder.eval()


def _write_encoder(path: Path, encoder: Encoder, digest: str) -> None:
    tensors = {name: value.detach().cpu().contiguous() for name, value in encoder.state_dict().items()}
    dtype = str(next(encoder.parameters(), torch.empty(0)).dtype).removeprefix("torch.")
    about = {
        "format": "pt", "features": str(encoder.num_features), "dtype": dtype,
        "spec": encoder.spec.model_dump_json(), "model_sha256": digest,
    }  # fmt: skip
    save_file(tensors, path, metadata=about)


def _write_labels(path: Path, labels: np.ndarray, graph: Graph) -> None:
    with NpyWriter(path, np.int32) as file:
        for piece in pieces(labels):
            file.append(piece)
            graph.release()


def _write_text(path: Path, ids: np.ndarray) -> None:
    """A JSON list, an id to a line, written as it is read."""
    with path.open("w", encoding="utf-8") as file:
        before = "[\n"
        for piece in pieces(ids, row_bytes=_TEXT_ID_BYTES + ids.itemsize):
            file.write(before + ",\n".join(json.dumps(name, ensure_ascii=False) for name in piece.tolist()))
            before = ",\n"
            release(ids)
        file.write("\n]\n")
