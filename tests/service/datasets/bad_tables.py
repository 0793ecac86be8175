"""Pairs of tables that are no graph, and which of the two is to blame."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.service.datasets.forms import EDGES, NODES, parquet, zipped


class BadTables(NamedTuple):
    name: str
    nodes: str | bytes
    edges: str | bytes
    field: str
    importer: bool = True
    endings: tuple[str, str] = ("csv", "csv")
    options: dict[str, Any] | None = None


def bad_tables() -> Iterator[BadTables]:
    """Every case, names all different."""
    for name, nodes in _unreadable().items():
        yield BadTables(f"nodes-{name}", nodes, EDGES, "nodes", importer=False)
        yield BadTables(f"edges-{name}", NODES, nodes, "edges", importer=False)
    for name, nodes in _bad_nodes().items():
        yield BadTables(f"nodes-{name}", nodes, EDGES, "nodes")
    for name, edges in _bad_edges().items():
        yield BadTables(f"edges-{name}", NODES, edges, "edges")
    yield BadTables("no-such-id-column", NODES, EDGES, "nodes", options={"id_column": "key"})
    yield BadTables("no-such-label-column", NODES, EDGES, "nodes", options={"label_column": "kind"})
    yield BadTables("no-such-weight-column", NODES, EDGES, "edges", options={"weight_column": "strength"})
    yield BadTables("no-such-source-column", NODES, EDGES, "edges", options={"source_column": "from"})
    yield from _parquet()


def _unreadable() -> dict[str, str | bytes]:
    return {
        "empty": "", "mark-only": b"\xef\xbb\xbf", "blank": "\n\n\r\n", "utf16": "id,a\n1,2\n".encode("utf-16"),
        "latin1-header": "größe,a\n1,2\n".encode("latin-1"), "gzip": gzip.compress(b"id,a\n1,2\n"),
        "zip": zipped([("nodes.csv", b"id,a\n1,2\n")]), "is-parquet": parquet(id=[1, 2]), "commas": ",,,\n1,2,3,4\n",
        "nul-header": b"id,\0a\n1,2\n", "binary": bytes(range(128, 256)) * 10,
    }  # fmt: skip


def _bad_nodes() -> dict[str, str | bytes]:
    return {
        "no-id": "key,a\np,1\nq,2\n", "no-features": "id,label\np,x\nq,y\nr,x\ns,y\n",
        "text-feature": NODES + "t,cat,much,1\n", "nan": NODES + "t,cat,nan,1\n", "infinite": NODES + "t,cat,inf,1\n",
        "minus-infinite": NODES + "t,cat,-inf,1\n", "gap": NODES + "t,cat,,1\n", "id-twice": NODES + "p,cat,1,1\n",
        "integer-id-twice": "id,a\n1,1\n2,1\n1,1\n", "empty-id": NODES + ",cat,1,1\n", "one-node": "id,a\np,1\n",
        "no-rows": "id,a\n", "short-row": NODES + "t,cat,1\n", "long-row": NODES + "t,cat,1,2,3\n",
        "latin1-row": NODES.encode() + "t,größe,1,2\n".encode("latin-1"), "column-twice": "id,a,a\np,1,2\nq,1,2\n",
        "label-negative": "id,label,a\np,0,1\nq,-5,2\n", "long-id": NODES + f"{'t' * 300},cat,1,2\n",
        "colons": NODES.replace(",", ":"), "open-quote": NODES + '"t,cat,1,2\n', "only-header-text": "hello\n",
        "nul-row": NODES.encode() + b"t\0,cat,1,2\n",
    }  # fmt: skip


def _bad_edges() -> dict[str, str | bytes]:
    return {
        "no-source": "from,target\np,q\n", "no-target": "source,to\np,q\n", "unknown-source": EDGES + "z,q\n",
        "unknown-target": EDGES + "p,z\n", "empty-end": EDGES + ",q\n", "short-row": EDGES + "p\n",
        "long-row": EDGES + "p,q,r\n", "weight-negative": "source,target,weight\np,q,1\nq,r,-1\n",
        "weight-nan": "source,target,weight\np,q,nan\n", "weight-text": "source,target,weight\np,q,heavy\n",
        "weight-gap": "source,target,weight\np,q,\n", "latin1-row": EDGES.encode() + "p,größe\n".encode("latin-1"),
        "column-twice": "source,source,target\np,p,q\n", "spaces": EDGES + "p, q\n",
    }  # fmt: skip


def _parquet() -> Iterator[BadTables]:
    nodes = parquet(id=["p", "q", "r", "s"], a=[1.0, 2.0, 3.0, 4.0])
    edges = parquet(source=["p", "q"], target=["q", "r"])
    footer = bytearray(nodes)
    footer[-8:-4] = (10**9).to_bytes(4, "little")
    garbled = bytearray(nodes)
    garbled[-60:-12] = bytes(48)
    encrypted = nodes[:-4] + b"PARE"
    kinds = ("parquet", "parquet")
    for name, content in {
        "empty": b"", "text": b"id,a\n1,2\n", "magic-only": b"PAR1", "magic-twice": b"PAR1PAR1", "cut": nodes[:-20],
        "footer-beyond": bytes(footer), "encrypted": encrypted, "zip": zipped([("nodes.parquet", nodes)]),
    }.items():  # fmt: skip
        yield BadTables(f"parquet-nodes-{name}", content, edges, "nodes", importer=False, endings=kinds)
    for name, content in {
        "footer-garbled": bytes(garbled), "data-garbled": _garbled_data(nodes), "no-id": parquet(a=[1.0, 2.0]),
        "lists": parquet(id=[1, 2], a=[[1.0], [2.0, 3.0]]), "text-feature": parquet(id=[1, 2], a=["x", "y"]),
        "nan": parquet(id=[1, 2], a=[1.0, float("nan")]), "null": parquet(id=[1, 2], a=[1.0, None]),
        "float-ids": parquet(id=[0.5, 1.5], a=[1.0, 2.0]), "null-id": parquet(id=[1, None], a=[1.0, 2.0]),
        "id-twice": parquet(id=[1, 1], a=[1.0, 2.0]), "no-rows": parquet(id=[], a=[]),
        "half-label": parquet(id=[1, 2], a=[1.0, 2.0], label=[0.5, 1.0]),
    }.items():  # fmt: skip
        yield BadTables(f"parquet-nodes-{name}", content, edges, "nodes", endings=kinds)
    for name, content in {
        "unknown": parquet(source=["p"], target=["z"]), "no-target": parquet(source=["p"]),
        "weight": parquet(source=["p"], target=["q"], weight=[-1.0]), "null": parquet(source=[None], target=["q"]),
    }.items():  # fmt: skip
        yield BadTables(f"parquet-edges-{name}", nodes, content, "edges", endings=kinds)


def _garbled_data(content: bytes) -> bytes:
    """The same file with other bytes in its first pages."""
    return content[:4] + bytes(byte ^ 0x55 for byte in content[4:80]) + content[80:]
