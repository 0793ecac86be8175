"""Nearest neighbours of every node, as a CSV file: node, rank, id, score."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import InvalidInput
from trainer.files.atomic import write_atomically

if TYPE_CHECKING:
    from service.client import Client

NODES_AT_ONCE = 4_096


def write_all_neighbors(client: Client, ref: str, out: Path, **search: Any) -> tuple[str, int]:
    """Ask for all nodes of one version, some thousands at a time; the file is there completely or not at all.

    Args:
        search: k, metric, labels, backend, as for `client.vectors.neighbors`.

    Returns:
        The version, and how many nodes it has.

    Raises:
        InvalidInput: the file cannot be written, or its name says that it is no CSV.
    """
    if out.suffix.lower() != ".csv":
        raise InvalidInput(f"{out}: neighbours of all nodes are written as CSV. End its name in .csv.")
    version = client.vectors.get(ref).version  # an alias may move meanwhile
    nodes = _ids(client, version)

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("node", "rank", "id", "score"))
            for start in range(0, len(nodes), NODES_AT_ONCE):
                found = client.vectors.neighbors(version, nodes[start : start + NODES_AT_ONCE], **search)
                for query, ids, scores in zip(found.queries, found.ids, found.scores, strict=True):
                    pairs = enumerate(zip(ids, scores.tolist(), strict=True), start=1)
                    rows.writerows((query, rank, node, score) for rank, (node, score) in pairs)

    try:
        write_atomically(out, write)
    except OSError as error:
        raise InvalidInput(f"{out}: cannot be written ({error.strerror}). Name another file.") from error
    return version, len(nodes)


def _ids(client: Client, version: str) -> list[Any]:
    import numpy as np

    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "ids"
        client.vectors.download(version, file, "ids")
        with file.open("rb") as content:
            is_array = content.read(6) == b"\x93NUMPY"
        found: list[Any] = (
            np.load(file, allow_pickle=False).tolist() if is_array else json.loads(file.read_text(encoding="utf-8"))
        )
    return found
