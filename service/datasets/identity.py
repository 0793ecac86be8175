"""What an upload is called: the name that its sender gives, and the version that follows from its content.

The version is the first 12 hex digits of a SHA-256 over the options and, for each part, its kind and checksum. So the
same upload is the same version, whoever sends it and however often, and a version never changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError, create_model

from service.datasets.refusal import Refused, unusable
from trainer.data.datasets import imported_directory
from trainer.spec.base import Spec
from trainer.spec.data import DatasetName, FilesSpec

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$"  # no dot: what comes after one is the version
REF = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}\.[0-9a-f]{12}$"
TAKEN = frozenset(get_args(DatasetName))  # mean something else in a spec
_SOURCES = ("npz", "nodes", "edges")
_LATER = ("feature_columns", "ignore_columns")  # did not exist at first: unset, they must not change any version
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# One definition: what data.files says about columns and directions is what an upload may say, and nothing else.
_FIELDS: dict[str, Any] = {
    name: (field.annotation, field) for name, field in FilesSpec.model_fields.items() if name not in _SOURCES
}
UploadOptions = create_model("UploadOptions", __base__=Spec, **_FIELDS)
UploadOptions.__doc__ = "How to read the tables of an upload: which columns mean what. Unknown keys are refused."


class StoredPart(NamedTuple):
    """A file of an upload, complete on disk."""

    field: str  # npz, nodes or edges
    file: str  # its name within the upload's folder; the ending tells its kind
    sha256: str
    size: int


def checked_name(text: bytes) -> str:
    """The name of a data set.

    Raises:
        Refused: it is not one.
    """
    try:
        name = text.decode()
    except UnicodeDecodeError:
        name = ""
    if not re.fullmatch(NAME, name):
        raise unusable("name", "use 1 to 60 letters, digits, dashes and underscores, beginning with a letter or digit")
    if name in TAKEN:
        raise unusable("name", f"{name} is the name of a set that is always there; choose another")
    return name


def checked_options(text: bytes) -> dict[str, Any]:
    """Options with every default written out.

    Raises:
        Refused: no JSON object, an unknown key, or a value that does not fit.
    """
    try:
        options = UploadOptions.model_validate_json(text)
    except ValidationError as error:
        raise unusable("options", _explained(error)) from None
    found: dict[str, Any] = options.model_dump()
    for key, value in found.items():
        if any(_CONTROL.search(text) for text in _texts(value)):
            raise unusable("options", f"{key}: holds a control character; remove it")
    return found


def _texts(value: Any) -> Iterable[str]:
    """The texts among a value and, of a list of column names, all of them."""
    return [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]


def version_of(options: dict[str, Any], parts: Iterable[StoredPart]) -> str:
    """12 hex digits that name this content."""
    content = {
        "options": {key: value for key, value in options.items() if value is not None or key not in _LATER},
        "parts": {part.field: [part.file.rpartition(".")[2], part.sha256] for part in parts},
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def split_ref(ref: str) -> tuple[str, str] | None:
    """Name and version of a reference; none if it is not one."""
    if not re.fullmatch(REF, ref):
        return None
    name, _, version = ref.partition(".")
    return name, version


def _explained(error: ValidationError) -> str:
    """One sentence per wrong key, without repeating what was sent."""
    lines = []
    for item in error.errors(include_url=False, include_context=False, include_input=False)[:10]:
        where = ".".join(str(part) for part in item["loc"])
        what = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            what = f"unknown key; there are {', '.join(_FIELDS)}"
        lines.append(f"{where}: {what}" if where else what)
    return "; ".join(lines)


def refuse_taken(name: str, home: Path) -> None:
    """Refuse the name of a graph that was imported on the command line, which a spec would mean by it.

    Raises:
        Refused: 409.
    """
    if (imported_directory(name, home) / "manifest.json").exists():
        raise Refused(409, "name", f"a graph imported on the command line is called {name}; choose another name")
