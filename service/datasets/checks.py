"""What can be refused at once, without reading the data: the wrong kind of file, an empty one, a bomb.

Everything else takes a look at every value, which is the import job's part.
"""

from __future__ import annotations

import codecs
import csv
import struct
from collections.abc import Iterable
from pathlib import Path

from service.datasets.identity import StoredPart
from service.datasets.npz_checks import check_npz
from service.datasets.refusal import unusable

MAX_UNPACKED = 64 << 30  # bytes of an npz, as the importer has it
LOOKED_AT = 65_536  # bytes of a CSV file; the importer looks at the rest
_SIGNS = {b"PK\x03\x04": "a zip", b"PAR1": "Parquet", b"\x1f\x8b": "compressed by gzip", b"\x93NUMPY": "a .npy file"}


def check_parts(parts: Iterable[StoredPart], folder: Path, *, memory: int) -> int:
    """Refuse what cannot be a graph. Returns about how many bytes of memory the import will need.

    Args:
        memory: bytes that a job may have; an npz must fit in it.

    Raises:
        Refused: 422, for the part that is to blame.
    """
    need = 400_000_000  # numpy, pyarrow and the importer's own buffers
    for part in parts:
        path = folder / part.file
        if part.field == "npz":
            # torch, the arrays, and as much again while edges are sorted
            need += 300_000_000 + 4 * check_npz(path, most_bytes=min(MAX_UNPACKED, memory))
        elif path.suffix == ".parquet":
            _check_parquet(path, part.field)
        else:
            _check_csv(path, part.field)
        if part.field == "nodes":
            need += 2 * part.size  # 16 to 40 bytes per node, to look up ids
    return min(need, memory)


def _check_parquet(path: Path, field: str) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        begins = file.read(4)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    if size == 0:
        raise unusable(field, "is empty; write it as Parquet, with a row for each")
    if begins == b"PARE" or tail[4:] == b"PARE":
        raise unusable(field, "is encrypted Parquet; write it without encryption")
    if begins != b"PAR1" or tail[4:] != b"PAR1" or size < 12:
        raise unusable(field, "is not a Parquet file, or cut short; write it as Parquet, or name it .csv if it is CSV")
    (footer,) = struct.unpack("<I", tail[:4])
    if footer > size - 12:
        raise unusable(field, "is a Parquet file without its footer; write it anew")


def _check_csv(path: Path, field: str) -> None:
    with path.open("rb") as file:
        lines = file.read(LOOKED_AT)
    for sign, what in _SIGNS.items():
        if lines.startswith(sign):
            raise unusable(field, f"is {what}, not CSV; send CSV as plain text, or Parquet under a name in .parquet")
    header = lines.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").partition(b"\n")[0].partition(b"\r")[0]
    if not header:
        raise unusable(field, "is empty; begin with a line of column names")
    if b"\0" in header:
        raise unusable(field, "holds NUL characters in its first line; save it as CSV in UTF-8")
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(header)  # its last character may be cut in two
        names = next(csv.reader([text]), [])
    except (UnicodeDecodeError, csv.Error):
        raise unusable(field, "has a first line that is not UTF-8 text; save it as CSV in UTF-8") from None
    if not any(name.strip() for name in names):
        raise unusable(field, "has no column names in its first line; begin with such a line")
