"""From a request's body to files on disk, while it arrives and without holding up the event loop.

The loop only gathers pieces; parsing, hashing and writing happen in a thread, about a megabyte at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from service.datasets.form import Form
from service.datasets.identity import StoredPart, checked_options
from service.datasets.in_progress import UploadInProgress
from service.datasets.refusal import Refused
from service.datasets.uploads import Upload, check_room
from service.settings import Settings

PIECE_BYTES = 1 << 20  # handed to a thread at a time; also what an upload holds in memory
SILENT_SECONDS = 120.0  # without a byte from the client


@dataclass(frozen=True)
class Received:
    """A complete form, its files on disk."""

    upload: Upload
    name: str
    options: dict[str, Any]  # every default written out

    @property
    def parts(self) -> list[StoredPart]:
        return list(self.upload.parts.values())

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


async def receive(
    body: AsyncIterator[bytes], boundary: bytes, settings: Settings, *, announced: int | None, allowance: int,
    progress: UploadInProgress,
) -> Received:  # fmt: skip
    """Store the files of a form. Nothing is left of it if this fails, or if the client goes away.

    Args:
        announced: bytes of the body as far as the client says, to refuse early what will not fit.
        allowance: bytes that the client may still store, together with other uploads that are under way.
        progress: where to count what has come.

    Raises:
        Refused: for whatever is wrong with it.
    """
    writer = await anyio.to_thread.run_sync(_Writer, boundary, settings, announced, allowance, progress)
    try:
        async for piece in _gathered(body):
            await anyio.to_thread.run_sync(writer.form.feed, piece)
        return await anyio.to_thread.run_sync(writer.finish)
    except BaseException:  # also when the request is cancelled
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(writer.upload.discard)
        raise


async def _gathered(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in larger pieces.

    Raises:
        Refused: 408, the client has gone silent.
    """
    pieces: list[bytes] = []
    size = 0
    pending = aiter(body)
    while True:
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                piece = await anext(pending)
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise Refused(408, "body", f"nothing came for {SILENT_SECONDS:g} s; upload it again") from None
        pieces.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    if size:
        yield b"".join(pieces)


class _Writer:
    """A form on its way to disk, and its limits."""

    def __init__(
        self, boundary: bytes, settings: Settings, announced: int | None, allowance: int, progress: UploadInProgress
    ):  # fmt: skip
        check_room(settings, needed=announced or 0)
        self._settings, self._allowance, self._progress = settings, allowance, progress
        self.upload = Upload(settings)
        try:
            self.form = Form(boundary, self.upload, self._count)
        except BaseException:
            self.upload.discard()
            raise

    def finish(self) -> Received:
        self.form.finish()
        self.upload.settle()
        options = checked_options(b"{}") if self.form.options is None else self.form.options
        assert self.form.name is not None  # the form saw to it
        return Received(self.upload, self.form.name, options)

    def _count(self, size: int) -> None:
        self._progress.bytes += size
        limit = self._settings.max_upload_bytes
        if self._progress.bytes > limit:
            raise Refused(413, "body", f"the files have more than the {limit:,} bytes that an upload may have")
        refuse_beyond(self._allowance - self._progress.bytes_of_others(), self._progress.bytes)
        check_room(self._settings, needed=size)


def refuse_beyond(allowance: int, size: int) -> None:
    """Refuse what the client's key may not store any more.

    Raises:
        Refused: 403.
    """
    if size > allowance:
        left = max(0, allowance)
        raise Refused(403, "body", f"data sets of this key may take {left:,} more bytes; delete some, or ask for more")
