"""What an npz file promises, looked at before anything is unpacked; standard library only, and little memory.

An npz is a zip of .npy files. The zip's directory and each array's header tell what reading it would take, so a bomb, a
pickle or a header that promises more than there is are refused here. Values are the importer's to check.
"""

from __future__ import annotations

import ast
import errno
import math
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from service.datasets.refusal import unusable

MAX_MEMBERS = 100
MAX_DIRECTORY = 100_000  # bytes of the zip's directory: Python reads it whole, and a hundred members need a tenth
MAX_HEADER = 10_000  # bytes of an array's header, as numpy has it
MAX_RATIO = 200  # unpacked to packed; deflate reaches 1,000 on zeros, features and edges stay below 100
FREE_BYTES = 256_000_000  # unpacked; up to there the ratio does not matter
_MAGIC = b"\x93NUMPY"
_KIND = re.compile(r"[<>|=]?([biufU])(\d{1,4})")
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"


def check_npz(path: Path, *, most_bytes: int) -> int:
    """Refuse a file that is not plain arrays of a sane size. Returns how many bytes it unpacks to.

    Args:
        most_bytes: that all arrays together may unpack to.

    Raises:
        Refused: 422, for the part npz.
    """
    size = path.stat().st_size
    if size == 0:
        raise _bad("is empty; write it with numpy.savez")
    try:
        with path.open("rb") as file:
            _check_directory(file, size)
            with zipfile.ZipFile(file) as archive:
                return _check_members(archive, size, most_bytes)
    except (zipfile.BadZipFile, struct.error, EOFError, UnicodeDecodeError) as error:
        raise _bad(f"is not an npz file, or cut short ({error}); write it with numpy.savez") from None
    except (zlib.error, NotImplementedError, RuntimeError, ValueError, OverflowError) as error:
        raise _bad(f"cannot be read ({error}); write it anew with numpy.savez") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # else it was told to seek to before the beginning
            raise
        raise _bad("has a broken directory; write it anew with numpy.savez") from None


def _check_directory(file: BinaryIO, size: int) -> None:
    """The length of the zip's directory, before zipfile reads all of it."""
    start = max(0, size - 65_557)  # the end record, and the longest comment
    file.seek(start)
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        raise _bad("is not an npz file, or cut short; write it with numpy.savez")
    members, _, directory, _ = struct.unpack_from("<HHLL", tail, at + 8)
    if at >= 20 and tail[at - 20 : at - 16] == _LOCATOR64:  # the numbers did not fit, and stand in a record before
        (place,) = struct.unpack_from("<Q", tail, at - 12)
        file.seek(min(place, size))
        record = file.read(56)
        if len(record) < 56 or not record.startswith(_END64):
            raise _bad("has a broken directory; write it with numpy.savez")
        members, _, directory, _ = struct.unpack_from("<QQQQ", record, 24)
    if members > MAX_MEMBERS or directory > MAX_DIRECTORY:
        raise _bad(f"has more than {MAX_MEMBERS} members; a graph has a dozen arrays at most")
    file.seek(0)


def _check_members(archive: zipfile.ZipFile, size: int, most_bytes: int) -> int:
    members = archive.infolist()
    names = [info.filename for info in members]
    if not members:
        raise _bad("holds no arrays; save edge_index and x with numpy.savez")
    if len(members) > MAX_MEMBERS:
        raise _bad(f"has more than {MAX_MEMBERS} members; a graph has a dozen arrays at most")
    if len(set(names)) < len(names):
        raise _bad("holds two arrays of one name; write it anew with numpy.savez")
    for info in members:
        _check_member(info)
    unpacked, packed = (sum(getattr(info, key) for info in members) for key in ("file_size", "compress_size"))
    if packed > size:
        raise _bad("has members that overlap; write it with numpy.savez")
    if unpacked > most_bytes:
        raise _bad(
            f"unpacks to {unpacked:,} bytes, more than the {most_bytes:,} allowed here. "
            "Save features sparse (attr_*), or send the graph as Parquet tables"
        )
    if unpacked > FREE_BYTES and unpacked > MAX_RATIO * packed:
        raise _bad(
            f"unpacks to {unpacked // max(1, packed):,} times its size, as a zip bomb does. Save features sparse "
            "(attr_*), or save without compression"
        )
    for info in members:
        _check_array(archive, info)
    return unpacked


def _check_member(info: zipfile.ZipInfo) -> None:
    name = _shown(info.filename)
    if not info.filename.endswith(".npy") or "/" in info.filename or "\\" in info.filename:
        raise _bad(f"holds {name}, which is not an array; write it with numpy.savez")
    if info.flag_bits & 0x1:
        raise _bad(f"{name} is encrypted; write it with numpy.savez")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _bad(f"{name} is compressed in a way that numpy does not write; write it with numpy.savez")
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise _bad(f"{name} has two sizes; write it with numpy.savez")


def _check_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """numpy allocates what a header promises before it reads, so a header must not promise more than is there."""
    name = _shown(info.filename.removesuffix(".npy"))
    with archive.open(info) as file:
        header, start = _header(file, name)
    descr, shape = header.get("descr"), header.get("shape")
    if header.keys() != {"descr", "fortran_order", "shape"} or not isinstance(shape, tuple):
        raise _bad(f"{name} has a broken header; write it with numpy.savez")
    if not isinstance(descr, str):
        raise _bad(f"{name} has named fields; save plain arrays")
    if "O" in descr:
        raise _bad(f"{name} holds Python objects (rows of different lengths?), which are never unpickled here; "
                   "save plain arrays of numbers or text")  # fmt: skip
    kind = re.fullmatch(r"[|]?b1", descr) or _KIND.fullmatch(descr)
    if kind is None:
        raise _bad(f"{name} has a type that no graph has; save plain arrays of numbers or text")
    if not all(type(length) is int and 0 <= length < 2**62 for length in shape) or len(shape) > 8:
        raise _bad(f"{name} has no sane shape; write it with numpy.savez")
    item = 1 if kind.lastindex is None else int(kind[2]) * (4 if kind[1] == "U" else 1)
    if math.prod(shape) * item > info.file_size - start:
        raise _bad(f"{name} is cut short: its header promises more than there is; write it anew")


def _header(file: Any, name: str) -> tuple[dict[str, Any], int]:
    """The dictionary at the beginning of a .npy file, and how long it is."""
    lead = file.read(8)
    if len(lead) < 8 or not lead.startswith(_MAGIC):
        raise _bad(f"{name} is not a .npy file; write it with numpy.savez")
    if lead[6] not in (1, 2, 3):
        raise _bad(f"{name} has .npy version {lead[6]}; write it with numpy.savez")
    form = "<H" if lead[6] == 1 else "<I"
    (length,) = struct.unpack(form, file.read(struct.calcsize(form)))
    if length > MAX_HEADER:
        raise _bad(f"{name} has a header of more than {MAX_HEADER:,} bytes; save plain arrays")
    text = file.read(length)
    if len(text) < length:
        raise _bad(f"{name} is cut short; write it anew")
    try:
        found = ast.literal_eval(text.decode("utf-8" if lead[6] == 3 else "latin-1").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _bad(f"{name} has a broken header; write it with numpy.savez")
    return found, 8 + struct.calcsize(form) + length


def _shown(name: str) -> str:
    """A member's name, safe to print."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:40]) or "a member"


def _bad(message: str) -> Exception:
    return unusable("npz", message)
