"""Files that jobs leave, and nothing else: known names only, below the job's own folder, links not followed."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable
from starlette.types import Receive, Scope, Send

from service.api.problems import Problem

FIGURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}\.(?:png|svg|html)")
MAX_LOG_BYTES = 1_000_000
_TYPES = {
    ".png": "image/png", ".svg": "image/svg+xml", ".html": "text/html; charset=utf-8", ".json": "application/json",
    ".npy": "application/octet-stream",
}  # fmt: skip
_SHOWN = (".png",)  # the others could hold scripts or are for programs: they are saved, not shown


class Download(FileResponse):
    """A file with ranges and an entity tag, whose refusals are problems too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        asked, condition = headers.get("range"), headers.get("if-range")
        if asked is not None and not (scope["method"] == "GET" and _may_be_bytes(asked)):
            # RFC 9110, 14.2: only GET has ranges, and one in units that nobody here knows is as if it were not there
            scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"range"]}
            asked = None
        if condition is not None and not self._should_use_range(condition):
            asked = None  # whatever it says: the whole file is sent
        if asked is not None and self.stat_result is not None:
            size = self.stat_result.st_size
            try:
                self._parse_range_header(asked, size)
            except RangeNotSatisfiable:
                raise Problem(416, f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"}) from None
            except MalformedRangeHeader:
                raise Problem(400, "invalid Range header (expected a form such as bytes=0-99)") from None
        await super().__call__(scope, receive, send)


def _may_be_bytes(asked: str) -> bool:
    """Whether a Range is in bytes, or in no units at all."""
    unit, equals, _ = asked.partition("=")
    return not equals or unit.strip().lower() == "bytes"


def download(folder: Path, *parts: str) -> Download:
    """The file `parts` below `folder`; every part is a name that was checked before.

    Raises:
        Problem: 404, there is no such regular file, or a link stands in its way.
    """
    path = folder.joinpath(*parts)
    found = _plain_file(folder, *parts)
    if found is None:
        raise Problem(404, "the file does not exist, or no longer does")
    how = "inline" if path.suffix in _SHOWN else "attachment"
    return Download(
        path, stat_result=found, media_type=_TYPES[path.suffix], filename=path.name, content_disposition_type=how
    )


def tail(folders: list[tuple[Path, str]], lines: int) -> str:
    """The last lines of the first of these files that holds something; "" if there is none. At most a megabyte."""
    for folder, name in folders:
        found = _plain_file(folder, name)
        if found is None or not found.st_size:
            continue
        try:
            with open(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                start = max(0, found.st_size - MAX_LOG_BYTES)
                file.seek(start)
                text = file.read(MAX_LOG_BYTES)
        except OSError:  # deleted meanwhile
            continue
        whole = text.splitlines(keepends=True)
        if start and len(whole) > 1:  # the first one begins before the megabyte does
            del whole[0]
        return b"".join(whole[-lines:]).decode("utf-8", errors="replace")
    return ""


def _plain_file(folder: Path, *parts: str) -> os.stat_result | None:
    """None unless it is a regular file that no link leads to, the job's folder included."""
    try:
        at, found = folder, folder.lstat()
        for part in parts:
            if not stat.S_ISDIR(found.st_mode):
                return None
            at = at / part
            found = at.lstat()
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None
