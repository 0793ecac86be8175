"""Publishes an export as a version: verified, indexed by id, and there completely or not at all.

A version is built in a hidden folder beside its place, made durable, and then renamed (trainer.files.whole_directory).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.embeddings.exact import SHORT
from service.embeddings.id_index_writer import Progress, write_id_files
from service.embeddings.integrity import find_damage
from service.embeddings.layout import (
    ENCODER,
    FORMAT,
    INVERSE_NORMS,
    LABELS,
    SPEC,
    VECTORS,
    VERSION_FILE,
    VersionInfo,
    as_document,
    ids_file_of,
    read_info,
)
from trainer.errors import Infrastructure, InvalidInput, NonFinite
from trainer.files.atomic import sha256
from trainer.files.mapped import map_npy, pieces, release
from trainer.files.npy import NpyWriter
from trainer.files.whole_directory import whole_directory

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
_LONGEST = 1e18  # whose square, and products with others like it, float32 can still hold
_AGAIN = "Train again, or restore the run's files."


def build_version(
    export: Path, spec_file: Path, target: Path, *, version: str, progress: Progress | None = None
) -> VersionInfo:
    """Make the folder `target` of an export; where it is complete and undamaged already, nothing is done.

    Killed at any point, the same call makes it anew. Of two who build at once the first wins, the other gets what the
    first has made.

    Args:
        export: a run's embeddings folder (trainer.export.embeddings).
        spec_file: the run's spec.json.
        progress: told what is being done, and the share of it that is done.

    Raises:
        InvalidInput: there is no finished export, or a file of it is not what its manifest vouches for; a vector holds
            NaN or infinity, or is longer than 1e18.
        Infrastructure: the disk is full or fails; trying again may help. Nothing half-made stays. Or `target` is a
            version in a format of another release, which is left alone.
    """
    try:
        found = _complete(target, version)
        if found is not None:
            return found
        _remove(target)
        with whole_directory(target) as place:
            return _fill(place, export, spec_file, version, progress)
    except FileExistsError as error:
        found = _complete(target, version)
        if found is None:
            raise Infrastructure(f"{target.name}: something else was put in its place. Publish again.") from error
        return found  # another was faster
    except OSError as error:
        if error.errno in _FULL:
            what = "the disk is full, the embeddings cannot be published"
            raise Infrastructure(f"{what} ({error.strerror}). Free space and publish again.") from error
        raise Infrastructure(f"the embeddings cannot be published ({error}). Publish again.") from error


def _fill(place: Path, export: Path, spec_file: Path, version: str, progress: Progress | None) -> VersionInfo:
    manifest = _read_manifest(export)
    rows, dim, id_type = manifest["rows"], manifest["dim"], manifest["id_type"]
    vouched = {VECTORS, ids_file_of(id_type), LABELS, ENCODER} & manifest["files"].keys()
    for name in sorted(vouched):
        _tell(progress, f"checking {name}", 0.0)
        _bring(export / name, place / name)
        if sha256(place / name) != manifest["files"][name]:
            raise InvalidInput(f"{name}: differs from the checksum in the export's manifest. {_AGAIN}")
    _bring(spec_file, place / SPEC)
    classes = _classes(place, manifest, rows) if LABELS in vouched else None
    _write_norms(place, rows, dim, progress)
    _tell(progress, "ids", 0.0)
    made = [INVERSE_NORMS, *write_id_files(place, id_type, rows, progress)]
    files = {name: manifest["files"][name] for name in vouched} | {name: sha256(place / name) for name in (SPEC, *made)}
    info = VersionInfo(
        version=version, rows=rows, dim=dim, id_type=id_type, classes=classes, has_encoder=ENCODER in files,
        bytes=sum((place / name).stat().st_size for name in files), files=dict(sorted(files.items())),
        export={key: value for key, value in manifest.items() if key not in ("files", "classes")},
    )  # fmt: skip
    (place / VERSION_FILE).write_text(json.dumps(as_document(info), indent=1, ensure_ascii=False), encoding="utf-8")
    return info


def _read_manifest(export: Path) -> dict[str, Any]:
    """The export's manifest; what is read of it here is of the right type."""
    try:
        manifest = json.loads((export / "manifest.json").read_bytes())
    except FileNotFoundError as error:
        raise InvalidInput(f"the run has no finished embeddings. {_AGAIN}") from error
    except ValueError as error:
        raise InvalidInput(f"manifest.json of the embeddings: is not JSON ({error}). {_AGAIN}") from error
    try:
        counts = [manifest["rows"], manifest["dim"]]
        id_type, files = manifest["id_type"], manifest["files"]
        right = (
            all(type(count) is int and count > 0 for count in counts)
            and id_type in ("int", "str")
            and {VECTORS, ids_file_of(id_type)} <= files.keys()
            and all(isinstance(value, str) for value in files.values())
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError):
        right = False
    if not right:
        raise InvalidInput(f"manifest.json of the embeddings: lacks rows, dim, id_type or files. {_AGAIN}")
    return manifest


def _bring(source: Path, place: Path) -> None:
    """A link where possible, else a copy.

    A link is the run's own file under a second name. It stays what it is, because the trainer never writes into a
    finished file: it writes another and renames that over it, which leaves ours alone. For the same reason its mode is
    not touched: it is the run's, too.
    """
    try:
        try:
            os.link(source, place)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            shutil.copyfile(source, place)
    except FileNotFoundError as error:
        raise InvalidInput(f"{source.name}: the run no longer has this file. {_AGAIN}") from error


def _classes(place: Path, manifest: dict[str, Any], rows: int) -> tuple[str, ...]:
    classes = manifest.get("classes")
    if not isinstance(classes, list):
        raise InvalidInput(f"manifest.json of the embeddings: lists no classes for {LABELS}. {_AGAIN}")
    try:
        labels = map_npy(place / LABELS, "<i4", (rows,))
    except ValueError as error:
        raise InvalidInput(f"{error}. {_AGAIN}") from error
    if labels.min() < -1 or labels.max() >= len(classes):
        raise InvalidInput(f"{LABELS}: has numbers beyond the {len(classes)} classes. {_AGAIN}")
    return tuple(map(str, classes))


def _write_norms(place: Path, rows: int, dim: int, progress: Progress | None) -> None:
    try:
        vectors = map_npy(place / VECTORS, "<f4", (rows, dim))
    except ValueError as error:
        raise InvalidInput(f"{error}. {_AGAIN}") from error
    with NpyWriter(place / INVERSE_NORMS, "<f4") as file:
        for piece in pieces(vectors):
            file.append(inverse_norms(piece, file.rows))
            release(piece)
            _tell(progress, "norms", file.rows / rows)


def inverse_norms(vectors: NDArray[np.float32], start: int = 0) -> NDArray[np.float32]:
    """1 / |vector| for vectors [n, dim], summed in float64; 0 for a zero vector, and for one shorter than 2^-100.

    Raises:
        NonFinite: a vector holds NaN or infinity.  start: number of the first row, for that message.
        InvalidInput: a vector is longer than 1e18.
    """
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)  # too wide for float32 numbers to overflow
    bad = np.flatnonzero(~np.isfinite(squares))
    if len(bad):
        raise NonFinite(f"{VECTORS}, row {start + bad[0]}: holds NaN or infinity. {_AGAIN}")
    norms = np.sqrt(squares)
    long = np.flatnonzero(norms > _LONGEST)
    if len(long):
        what = f"has length {norms[long[0]]:.3g}, more than the {_LONGEST:.0e} that can be searched"
        raise InvalidInput(f"{VECTORS}, row {start + long[0]}: {what}. Train again with a lower learning rate.")
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms >= SHORT).astype(np.float32)


def _complete(target: Path, version: str) -> VersionInfo | None:
    """What is at `target`, if that is this version with all its files, each as it was published.

    Raises:
        Infrastructure: it is a version of another format, which whoever made it can read.
    """
    try:
        info = read_info(target)
    except (FileNotFoundError, NotADirectoryError):  # any other error of the system tells nothing about it
        return None
    except ValueError as error:
        if _of_another_format(target):
            what = f"{target.name}: is published already, in a format that this release does not know"
            raise Infrastructure(f"{what}. Use the release that made it, or delete the version.") from error
        return None
    return info if info.version == version and find_damage(target, info) is None else None


def _of_another_format(target: Path) -> bool:
    try:
        document = json.loads((target / VERSION_FILE).read_bytes())
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("format", FORMAT) != FORMAT


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _tell(progress: Progress | None, what: str, share: float) -> None:
    if progress is not None:
        progress(what, share)
