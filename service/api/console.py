"""The console: the pages in service/web, which a browser may load without a key, since they hold nothing of anybody's.

They are read once, so that a request is a look into a dictionary: there is no path that could lead out of the folder.
What the pages show they ask of the public API, with the caller's own key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "web"
PREFIX = "/console/"
# Trusted types without a policy: a browser refuses any text that would be read as HTML or as a script.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class File:
    """A file of the console, as it is sent."""

    content: bytes
    media_type: str
    tag: bytes  # entity tag, with its quotes


@cache
def files() -> dict[str, File]:
    """All of them, by the path of their address."""
    found = {PREFIX + path.relative_to(FOLDER).as_posix(): _read(path) for path in _listed()}
    found["/"] = found.pop(PREFIX + "index.html")
    return found


def _listed() -> list[Path]:
    return sorted(path for path in FOLDER.rglob("*") if path.suffix in _TYPES and path.is_file())


def _read(path: Path) -> File:
    content = path.read_bytes()
    tag = b'"%s"' % hashlib.sha256(content).hexdigest()[:32].encode()
    return File(content, _TYPES[path.suffix], tag)
