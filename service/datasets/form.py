"""A multipart/form-data body, read as it arrives: fields into memory, files to disk, each within its limit.

    name        what to call the data set
    options     JSON (identity.UploadOptions)
    npz         one file, or
    nodes, edges    two tables; CSV or Parquet, told by the ending of the file name or by the content type

The file name is used for nothing else. Each part may be there once, and no other; headers and bytes are counted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.datasets.identity import checked_name, checked_options
from service.datasets.refusal import Refused, unusable
from service.datasets.uploads import PartFile, Upload

MAX_HEADERS, MAX_HEADER_BYTES = 8, 4_096
FIELD_BYTES = {"name": 200, "options": 64_000}
FILES = ("npz", "nodes", "edges")
ENDINGS = re.compile(r"\.(csv|tsv|parquet)$", re.IGNORECASE)
CONTENT_TYPES = {
    "text/csv": "csv",
    "application/csv": "csv",
    "text/tab-separated-values": "csv",
    "application/vnd.apache.parquet": "parquet",
    "application/parquet": "parquet",
    "application/x-parquet": "parquet",
}
_PLAIN = ("7bit", "8bit", "binary")  # transfer encodings that change nothing
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what is wrong with a form is told to its sender


class Form:
    """Takes the body in pieces of any size. Not for an event loop: files are written as they come.

    Args:
        count: told the bytes of files before they are written; raises to refuse them.
    """

    def __init__(self, boundary: bytes, upload: Upload, count: Callable[[int], None]):
        self.name: str | None = None
        self.options: dict[str, Any] | None = None
        self._upload, self._count = upload, count
        self._seen: set[str] = set()
        self._headers: dict[str, str] = {}
        self._header = self._value = b""
        self._field = ""
        self._text = bytearray()
        self._file: PartFile | None = None
        self._complete = False
        try:
            self._parser = MultipartParser(
                boundary, {
                    "on_part_begin": self._begin_part, "on_header_field": self._header_name,
                    "on_header_value": self._header_value, "on_header_end": self._end_header,
                    "on_headers_finished": self._begin_content, "on_part_data": self._content,
                    "on_part_end": self._end_part, "on_end": self._end,
                }, max_header_count=MAX_HEADERS, max_header_size=MAX_HEADER_BYTES,
            )  # fmt: skip
        except FormParserError as error:
            raise _malformed(error) from None

    def feed(self, data: bytes) -> None:
        """The next piece.

        Raises:
            Refused: 400 not such a body, 413 too large, 422 a part that cannot be used, 507 no room.
        """
        if self._complete:
            return  # an epilogue, which the standard allows and nobody reads
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(error) from None

    def finish(self) -> None:
        """There is no more.

        Raises:
            Refused: something is missing.
        """
        if not self._complete:
            raise Refused(400, "body", "the form is cut short: its last boundary is missing")
        if self.name is None:
            raise unusable("name", "is missing; say what to call the data set")
        if "npz" not in self._seen:
            missing = [field for field in ("nodes", "edges") if field not in self._seen]
            if len(missing) == 2:
                raise unusable("npz", "there is no file; send npz, or nodes and edges")
            if missing:
                raise unusable(missing[0], "is missing; send both nodes and edges")

    def _begin_part(self) -> None:
        self._headers, self._text, self._file = {}, bytearray(), None

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._header = self._value = b""

    def _begin_content(self) -> None:
        """All headers of a part are there: what is it, and is it wanted?"""
        kind, parameters = parse_options_header(self._headers.get("content-disposition"))
        self._field = parameters.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data" or not self._field:
            raise Refused(400, "body", "a part has no Content-Disposition: form-data with a name")
        if self._field not in FIELD_BYTES and self._field not in FILES:
            known = ", ".join((*FIELD_BYTES, *FILES))
            raise unusable(self._field[:60], f"is not a part of this form; there are {known}")
        if self._field in self._seen:
            raise unusable(self._field, "is there twice; send it once")
        if self._headers.get("content-transfer-encoding", "binary").strip().lower() not in _PLAIN:
            raise unusable(self._field, "has a Content-Transfer-Encoding; send it as it is")
        self._seen.add(self._field)
        if self._field in FILES:
            for other in ("nodes", "edges"):
                if {"npz", other} <= self._seen:
                    raise unusable(self._field, f"does not go with {other if self._field == 'npz' else 'npz'}; "
                                   "send either npz, or nodes and edges")  # fmt: skip
            file_name = parameters.get(b"filename", b"").decode("utf-8", "replace")
            self._file = self._upload.open(self._field, self._stored_name(file_name))

    def _stored_name(self, file_name: str) -> str:
        if self._field == "npz":
            return "graph.npz"
        ending = ENDINGS.search(file_name)
        content_type = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        kind = ending[1].lower() if ending else CONTENT_TYPES.get(content_type)
        if kind is None:
            raise unusable(
                self._field, "is neither CSV nor Parquet by its file name; let that end in .csv, .tsv or .parquet, "
                "or send the content type text/csv or application/vnd.apache.parquet",
            )  # fmt: skip
        return f"{self._field}.{'csv' if kind == 'tsv' else kind}"  # what separates the values, the reader finds out

    def _content(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._count(end - start)
            self._file.write(memoryview(data)[start:end])
            return
        if len(self._text) + end - start > FIELD_BYTES[self._field]:
            raise unusable(self._field, f"has more than {FIELD_BYTES[self._field]:,} bytes")
        self._text += data[start:end]

    def _end_part(self) -> None:
        """A field is looked at as soon as it is there, which spares the sender the rest of the files."""
        if self._file is not None:
            self._upload.close(self._file)
        elif self._field == "name":
            self.name = checked_name(bytes(self._text))
        else:
            self.options = checked_options(bytes(self._text))

    def _end(self) -> None:
        self._complete = True


def boundary_of(content_type: str) -> bytes:
    """The boundary of a form, from the request's Content-Type.

    Raises:
        Refused: 415 it is another type, 400 there is no boundary.
    """
    kind, parameters = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise Refused(415, "body", "send a form: Content-Type: multipart/form-data, with the file as a part")
    boundary = parameters.get(b"boundary", b"")
    if not boundary or len(boundary) > 200:
        raise Refused(400, "body", "Content-Type: multipart/form-data needs a boundary of at most 200 characters")
    return boundary


def _malformed(error: Exception) -> Refused:
    return Refused(400, "body", f"the form cannot be read ({error})")
