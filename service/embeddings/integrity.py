"""Whether the files of a version are still those that were published: version.json has the SHA-256 of each.

Two checks. `Stamps` compares size and time of change before every use: it costs microseconds, and sees whatever was
written to, replaced or cut short (reading a map beyond the end of its file would end the process). `find_damage` reads
everything, in small pieces, and sees what a failing disk has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from service.embeddings.layout import VersionInfo
from trainer.errors import Infrastructure

PIECE = 8 << 20  # bytes

Stamp = tuple[int, int, int]


class Damaged(Infrastructure):
    """A file of a version is not what was published."""


class Stamps:
    """What the files of an open table looked like when they were mapped."""

    def __init__(self, paths: Iterable[Path]):
        """Raises OSError if one of them is not there."""
        self._files = [(str(path), _stamp(path)) for path in paths]

    def changed(self) -> str | None:
        """The name of a file that is another now, or None. One that is gone was deleted, which changes no map."""
        for path, stamp in self._files:
            try:
                if _stamp(path) != stamp:
                    return os.path.basename(path)
            except FileNotFoundError:
                continue
            except OSError:
                return os.path.basename(path)
        return None

    def check(self) -> None:
        """Raises Damaged if a file is another now."""
        name = self.changed()
        if name is not None:
            raise Damaged(f"{name} was changed while it was being read. Try again in a moment.")


def _stamp(path: str | Path) -> Stamp:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def find_damage(directory: Path, info: VersionInfo, *, pause: Callable[[int], None] = lambda read: None) -> str | None:
    """What is wrong with a version's files, or None.

    Args:
        pause: told how many bytes were read, after each piece; may wait, or raise to give up.

    Raises:
        FileNotFoundError: the version was deleted.
    """
    for name, vouched in info.files.items():
        try:
            found = _sha256(directory / name, pause)
        except FileNotFoundError:
            if not directory.is_dir():
                raise
            return f"{name} is gone"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if found != vouched:
            return f"{name} differs from the checksum that it was published with"
    return None


def _sha256(path: Path, pause: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            pause(len(piece))
    return digest.hexdigest()
