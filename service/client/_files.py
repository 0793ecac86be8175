"""Large files to and from the service, never whole in memory: uploads with progress, and the export of a job.

What was downloaded is compared with the checksums in the run's manifest, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from service.client._downloads import Progress, fetch
from service.client._errors import ApiError, Unreachable
from service.client._session import CONNECT_SECONDS, Session
from trainer.errors import Infrastructure, InvalidInput

if TYPE_CHECKING:
    import numpy as np

UPLOAD_SECONDS = 900.0  # of silence: after the last byte the service checks the data before it answers


class _Counted(io.FileIO):
    """A file that tells how much of it was read."""

    def __init__(self, path: Path, told: Callable[[int], None]):
        super().__init__(path, "rb")
        self._told = told

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(-1 if size is None else size)
        self._told(len(piece))
        return piece


def upload(
    session: Session, path: str, fields: Mapping[str, str], files: Mapping[str, Path], progress: Progress | None
) -> httpx.Response:
    """Send a form with files, piece by piece; after a lost connection from the beginning.

    Raises:
        InvalidInput: a file cannot be read.
        ApiError, Unreachable: as any request.
    """
    patience = session.patience()
    timeout = httpx.Timeout(UPLOAD_SECONDS, connect=CONNECT_SECONDS)
    while True:
        with ExitStack() as stack:
            parts = _parts(stack, files, progress)
            try:
                with session.opened("POST", path, data=dict(fields), files=parts, timeout=timeout) as response:
                    response.read()
                    return response
            except (ApiError, Unreachable) as error:
                failure = error
        patience.pause(failure)


def _parts(
    stack: ExitStack, files: Mapping[str, Path], progress: Progress | None
) -> dict[str, tuple[str, io.FileIO, str]]:
    """Open files for a form. They are sent as nodes.csv and so on: the ending matters, the name is nobody's concern."""
    done = 0
    parts: dict[str, tuple[str, io.FileIO, str]] = {}

    def told(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None and size:
            progress(done, total)

    for field, path in files.items():
        try:
            file = stack.enter_context(_Counted(path, told))
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read ({error.strerror}). Give a file on this machine.") from error
        parts[field] = (f"{field}{path.suffix.lower()}", file, "application/octet-stream")
    total = sum(path.stat().st_size for path in files.values())
    return parts


def download(session: Session, path: str, target: Path) -> str:
    """Store a file; a lost connection is taken up where it was.

    Returns:
        SHA-256 of what was stored, in hex.
    """
    with target.open("w+b") as file:
        fetch(session, path, file)
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def embeddings(session: Session, path: str, directory: Path, *, mapped: bool) -> tuple[np.ndarray, np.ndarray]:
    """Download an export and open it: float32 vectors [N, dim] and the ids of their rows [N].

    Args:
        path: of the export; its files are below.
        mapped: leave the vectors on disk.

    Raises:
        Infrastructure: a file is not the one that the manifest vouches for.
    """
    import numpy as np

    directory.mkdir(parents=True, exist_ok=True)
    manifest = _fetch_manifest(session, path, directory)
    for name, checksum in manifest["files"].items():
        if name not in ("vectors.npy", "ids.npy", "ids.json"):
            continue  # a name out of a document: only those that are expected may become files here
        if download(session, f"{path}/{name}", directory / name) != checksum:
            raise Infrastructure(f"{name} of {session.url}/{path} differs from its checksum; download it again")
    vectors = np.load(directory / "vectors.npy", mmap_mode="r" if mapped else None, allow_pickle=False)
    if manifest["id_type"] == "int":
        ids = np.load(directory / "ids.npy", allow_pickle=False)
    else:
        ids = np.array(json.loads((directory / "ids.json").read_text(encoding="utf-8")))
    return vectors, ids


def _fetch_manifest(session: Session, path: str, directory: Path) -> dict[str, Any]:
    download(session, f"{path}/manifest.json", directory / "manifest.json")
    manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    return manifest
