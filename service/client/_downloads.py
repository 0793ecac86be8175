"""Downloads of any size, resumed after a lost connection, and in a later call after a crash.

A partial file is kept together with the entity tag it was sent under (RFC 9110, If-Range): if the file has changed
since, the service sends all of it, so two versions are never mixed. Where the tag is the file's SHA-256, as for npy and
ids, the finished file is checked against it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from service.client._errors import ApiError, Unreachable
from service.client._session import CONNECT_SECONDS, Session
from trainer.errors import Infrastructure, InvalidInput
from trainer.files.atomic import sync, write_atomically

FIRST_BYTE_SECONDS = 900.0  # of silence before an answer: a Parquet file is written when it is first asked for
BODY_SECONDS = 60.0  # of silence within it: the connection is lost, and taken up anew
_CHECKSUM = re.compile(r'"([0-9a-f]{64})"')  # an entity tag that is the SHA-256 of its file

Progress = Callable[[int, int], None]  # bytes so far, bytes in all


def fetch(
    session: Session,
    path: str,
    file: BinaryIO,
    *,
    etag: str | None = None,
    begun: Callable[[str | None], None] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> str | None:
    """Fill a file; a lost connection is taken up where it was. `options` are httpx's.

    Args:
        file: open for reading and writing; what it holds is the beginning, if `etag` says of what.
        begun: told the entity tag when the file is begun anew, before its first byte is written.

    Returns:
        The entity tag that all of it came under; None if the service gave none that promises the same bytes.

    Raises:
        Infrastructure: what comes is not what was asked for.
    """
    patience = session.patience()
    while True:
        have = file.seek(0, os.SEEK_END)
        # The last byte is asked for again: of a file that is complete already, "the rest" would be refused.
        start, resuming = max(0, have - 1), have > 0 and etag is not None
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        headers |= {"Range": f"bytes={start}-", "If-Range": str(etag)} if resuming else {}
        try:
            with session.opened("GET", path, headers=headers, **options) as response:
                if response.status_code == httpx.codes.PARTIAL_CONTENT:
                    _check_part(session, response, start if resuming else None)
                else:
                    start, etag = 0, _strong(response.headers.get("etag"))
                    file.seek(0)
                    file.truncate()
                    if begun is not None:
                        begun(etag)
                _receive(response, file, start, progress, patience.reset)
            return etag
        except (ApiError, Unreachable) as error:
            if resuming and isinstance(error, ApiError) and error.status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                etag = None  # the file is shorter than what we have, so that is of another one
                continue
            patience.pause(error)


def save(session: Session, path: str, target: Path, *, progress: Progress | None = None, **options: Any) -> None:
    """Store a file under `target`, complete or not at all; until then it grows as `target`.part beside it.

    The same call after a crash goes on with that part. An existing `target` is replaced.

    Raises:
        InvalidInput: the place cannot be written, or another process is downloading to it.
        Infrastructure: the disk is full or failed; the part is kept. Or what came differs from its checksum: it is not.
    """
    part, note = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.etag")
    source = str(httpx.URL(f"{session.url}/{path}", params=options.get("params")))

    def begun(etag: str | None) -> None:
        write_atomically(note, lambda temporary: _write(temporary, f"{source}\n{etag or ''}"))

    with _taken(target, part) as file:
        try:
            _await_file(session, path, **options)
            timeout = httpx.Timeout(BODY_SECONDS, connect=CONNECT_SECONDS)
            etag = _noted(note, source)
            etag = fetch(session, path, file, etag=etag, begun=begun, progress=progress, timeout=timeout, **options)
            if not _is_whole(part, etag):
                file.truncate(0)  # so that the next attempt does not go on with it
                note.unlink(missing_ok=True)
                raise Infrastructure(f"{target.name} of {source} differs from its checksum; download it again")
            os.fsync(file.fileno())
            os.replace(part, target)
            note.unlink(missing_ok=True)
            sync(target.parent)
        except OSError as error:
            raise Infrastructure(
                f"{part}: {error.strerror or error}. Free some space and repeat the command: the download resumes."
            ) from error


def _await_file(session: Session, path: str, **options: Any) -> None:
    """Return when the service has the file at hand, so that from then on silence means a lost connection.

    httpx knows one timeout for all reads of an answer, so the wait has a request of its own, for the first byte.
    """
    headers = {"Accept": "*/*", "Accept-Encoding": "identity", "Range": "bytes=0-0"}
    timeout, patience = httpx.Timeout(FIRST_BYTE_SECONDS, connect=CONNECT_SECONDS), session.patience()
    while True:
        try:
            with session.opened("GET", path, headers=headers, timeout=timeout, **options) as response:
                if response.headers.get("content-length") == "1":  # else all of it comes: hang up
                    response.read()
            return
        except (ApiError, Unreachable) as error:
            patience.pause(error)


def _is_whole(part: Path, etag: str | None) -> bool:
    """False if the entity tag is a checksum, and not that of the file."""
    told = _CHECKSUM.fullmatch(etag or "")
    if told is None:
        return True
    with part.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == told[1]


@contextmanager
def _taken(target: Path, part: Path) -> Iterator[BinaryIO]:
    """The part file, unbuffered, while no other process writes it."""
    if target.is_dir():
        raise InvalidInput(f"{target}: is a directory; give the name of a file")
    try:
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)  # as it is, not emptied
    except OSError as error:
        raise InvalidInput(
            f"{part}: cannot be written ({error.strerror}). Choose a folder that you can write to."
        ) from error
    with open(handle, "r+b", buffering=0) as file:  # no buffer, so that a full disk is told where it is met, once
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # not ours if it was finished, and renamed, between opening and locking
            current = part.stat().st_ino == os.fstat(file.fileno()).st_ino
        except OSError:
            current = False
        if not current:
            raise InvalidInput(f"{part}: another process is downloading to it; wait for it, or choose another file")
        try:
            yield file
        finally:
            if not os.fstat(file.fileno()).st_size:  # refused: nothing to go on with
                part.unlink(missing_ok=True)


def _receive(
    response: httpx.Response, file: BinaryIO, start: int, progress: Progress | None, alive: Callable[[], None]
) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise Infrastructure(f"{response.url} was compressed on the way, which was not requested; check the proxy")
    length = response.headers.get("content-length", "")
    total, done = start + int(length) if length.isdigit() else None, start
    file.seek(start)
    for piece in response.iter_raw():
        view = memoryview(piece)
        while view:  # a file without a buffer may take less than it is given
            view = view[file.write(view) :]
        done += len(piece)
        alive()
        if progress is not None:
            progress(done, max(done, total or 0))
    if total is not None and done != total:
        raise Infrastructure(f"{response.url} has {total} bytes, but only {done} were received; download it again")


def _check_part(session: Session, response: httpx.Response, start: int | None) -> None:
    told = response.headers.get("content-range", "")
    if start is None or not told.startswith(f"bytes {start}-"):
        asked = "all of it" if start is None else f"bytes from {start} on"
        raise Infrastructure(f"{session.url} sends {told or 'some part'} of a file where {asked} was asked for")


def _strong(etag: str | None) -> str | None:
    """Weak tags do not promise the same bytes."""
    return None if etag is None or etag.startswith("W/") else etag


def _noted(note: Path, source: str) -> str | None:
    """The entity tag of the part that is there; None if it is of something else."""
    try:
        of, _, etag = note.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return etag if of == source and etag.isprintable() and etag.isascii() and etag else None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
