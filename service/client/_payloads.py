"""Request bodies about embeddings, and arrays in responses: JSON, npy and Arrow, from and to numpy. Never pickle."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import httpx

from trainer.errors import Infrastructure, InvalidInput

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float32]]

NPY, JSON = "application/x-npy", "application/json"
ARROW = "application/vnd.apache.arrow.stream"


def node_ids(ids: Any) -> Any:
    """Node ids as a list that JSON can hold.

    Raises:
        InvalidInput: one is neither a whole number nor text, or has no form in UTF-8.
    """
    if isinstance(ids, str | bytes):
        raise InvalidInput("give node ids as a list, even if there is only one")
    found = ids.tolist() if hasattr(ids, "tolist") else [node.item() if hasattr(node, "item") else node for node in ids]
    for at, node in enumerate(found):
        if not isinstance(node, int | str) or isinstance(node, bool):
            raise InvalidInput(f"ids.{at}: {node!r} is not a node id; ids are whole numbers or text")
        try:
            str(node).encode()
        except ValueError as error:  # half of a surrogate pair, or a number of more digits than Python writes
            raise InvalidInput(f"ids.{at}: cannot be encoded as UTF-8 ({error})") from error
    return found


def matrix(vectors: Any) -> Floats:
    """Queries as float32 [q, dim]; a single one may be [dim].

    Raises:
        InvalidInput: they are something else.
    """
    import numpy as np

    try:
        found = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"vectors: not an array of numbers [q, dim] ({error})") from error
    if found.ndim != 2:
        raise InvalidInput(f"vectors: the array has shape {list(found.shape)}; give [q, dim]")
    return np.ascontiguousarray(found)


def as_json(document: Any) -> bytes:
    """A JSON body, in UTF-8; numpy's arrays and numbers become plain ones.

    Raises:
        InvalidInput: something in it has no form in JSON, such as NaN, or in UTF-8.
    """
    try:  # not as ASCII, which takes two or three times the bytes for other letters
        return json.dumps(document, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"this cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """What numpy has instead of lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def as_npy(array: Floats) -> bytes:
    """An array as the bytes of an npy file."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def accepting(kind: str) -> dict[str, str]:
    """The header that asks for an answer of this kind; refusals are problem documents in any case."""
    return {"Accept": f"{kind}, application/problem+json"}


def array_from(response: httpx.Response) -> Floats:
    """The array in an answer.

    Raises:
        Infrastructure: it is something else.
    """
    import numpy as np

    try:
        found: Floats = np.load(io.BytesIO(response.content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Infrastructure(f"{response.url} did not send an array: {error}") from error
    return found


def columns_from(response: httpx.Response) -> dict[str, list[Any]]:
    """The columns of the Arrow table in an answer, by name.

    Raises:
        Infrastructure: it is something else.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(response.content) as stream:
            found: dict[str, list[Any]] = stream.read_all().to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise Infrastructure(f"{response.url} did not send an Arrow table: {error}") from error
    return found


def version_of(response: httpx.Response) -> str:
    """Which version has answered."""
    version: str | None = response.headers.get("nml-version")
    if version is None:
        raise Infrastructure(f"{response.url} sent no Nml-Version header; a proxy on the way may have removed it")
    return version
