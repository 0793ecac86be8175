"""Multipart bodies and files for them, written out by hand so that wrong ones can be written too."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BOUNDARY = "----nml-boundary-7MA4YWxkTrZu0gW"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"

NODES = "id,label,a,b\np,cat,1,0.5\nq,dog,2,0.25\nr,cat,3,4\ns,,5,6\n"
EDGES = "source,target\np,q\nq,r\nr,s\n"


class Part(NamedTuple):
    """A part of a form; `headers` stand after its Content-Disposition."""

    name: str
    content: bytes
    filename: str | None = None
    content_type: str | None = None
    headers: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        disposition = f'Content-Disposition: form-data; name="{self.name}"'
        if self.filename is not None:
            disposition += f'; filename="{self.filename}"'
        lines = [disposition.encode()]
        if self.content_type is not None:
            lines.append(f"Content-Type: {self.content_type}".encode())
        return b"\r\n".join([*lines, *self.headers, b"", self.content])


def form(parts: Iterable[Part | bytes], boundary: str = BOUNDARY) -> bytes:
    """The body; bytes among the parts are taken as they are, headers and all."""
    line = b"--" + boundary.encode()
    encoded = (part.encode() if isinstance(part, Part) else part for part in parts)
    return b"".join(line + b"\r\n" + part + b"\r\n" for part in encoded) + line + b"--\r\n"


def field(name: str, value: str | bytes | dict[str, Any]) -> Part:
    """A plain field; a document becomes JSON."""
    text = json.dumps(value) if isinstance(value, dict) else value
    return Part(name, text.encode() if isinstance(text, str) else text)


def table(name: str, content: str | bytes, ending: str = "csv") -> Part:
    """A file part as a browser would send it."""
    return Part(name, content.encode() if isinstance(content, str) else content, f"{name}.{ending}", "text/csv")


def archive(content: bytes) -> Part:
    return Part("npz", content, "graph.npz", "application/octet-stream")


def npz(**arrays: Any) -> bytes:
    """What numpy.savez writes; `allow_pickle` stays as it is, so objects become pickles."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def graph(**changes: Any) -> dict[str, Any]:
    """Arrays of a small good graph; none as a change removes one."""
    arrays: dict[str, Any] = {"edge_index": np.array([[0, 1, 2], [1, 2, 3]]), "x": np.arange(8.0).reshape(4, 2)}
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def zipped(members: Iterable[tuple[str, bytes]], *, method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as out:
        for name, content in members:
            out.writestr(name, content)
    return file.getvalue()


def npy(header: str, data: bytes = b"", *, version: int = 1) -> bytes:
    """A .npy file with this very header."""
    text = header.encode("latin-1") + b"\n"
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def tables(nodes: str | bytes = NODES, edges: str | bytes = EDGES, *, endings: str = "csv") -> list[Part]:
    return [table("nodes", nodes, endings), table("edges", edges, endings)]
