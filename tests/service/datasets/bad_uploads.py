"""Uploads that must be refused: each with the status and the field that the refusal must name.

`bad_uploads()` gives them one by one. Those with `importer` are found only by the import process, which costs a process
each; the others are refused while the request is read.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.service.datasets.bad_tables import bad_tables
from tests.service.datasets.forms import (
    BOUNDARY,
    CONTENT_TYPE,
    Part,
    archive,
    field,
    form,
    graph,
    npy,
    npz,
    parquet,
    table,
    tables,
    zipped,
)

NAME = field("name", "bad")


class BadUpload(NamedTuple):
    name: str
    body: bytes
    status: int
    field: str
    importer: bool = False
    content_type: str | None = CONTENT_TYPE


def bad_uploads() -> Iterator[BadUpload]:
    """Every case, names all different."""
    yield from _names()
    yield from _options()
    yield from _bodies()
    yield from _parts()
    yield from _archives()
    yield from _headers()
    for name, arrays in _graphs().items():
        yield BadUpload(f"npz-{name}", form([NAME, archive(npz(**arrays))]), 422, "npz", importer=True)
    damaged = bytearray(npz(**graph(x=np.ones((500, 4)))))
    damaged[damaged.index(b"x.npy") + 400] ^= 0xFF
    yield BadUpload("npz-wrong-checksum", form([NAME, archive(bytes(damaged))]), 422, "npz", importer=True)
    for case in bad_tables():
        extra = [] if case.options is None else [field("options", case.options)]
        parts = [NAME, *extra, table("nodes", case.nodes, case.endings[0]), table("edges", case.edges, case.endings[1])]
        yield BadUpload(f"tables-{case.name}", form(parts), 422, case.field, importer=case.importer)


def _names() -> Iterator[BadUpload]:
    names: dict[str, str | bytes] = {
        "empty": "", "dot": "a.b", "version": "a.0123456789ab", "traversal": "../../etc", "slash": "a/b",
        "backslash": "a\\b", "space": "a b", "too-long": "x" * 61, "dash-first": "-a", "underscore-first": "_a",
        "umlaut": "bücher", "line-break": "a\nb", "last-line-break": "a\n", "nul": "a\0b", "markup": "<script>",
        "quote": "a'--", "percent": "%2e%2e", "hidden": ".hidden", "not-utf8": b"\xff\xfe", "huge": "x" * 1_000_000,
        "builtin": "digits", "public": "cora", "generator": "synthetic", "files": "files", "imported": "imported",
    }  # fmt: skip
    for name, value in names.items():
        yield BadUpload(f"name-{name}", form([field("name", value), *tables()]), 422, "name")
    yield BadUpload("name-missing", form(tables()), 422, "name")
    yield BadUpload("name-after-files", form([*tables(), field("name", "a b")]), 422, "name")


def _options() -> Iterator[BadUpload]:
    values: dict[str, str | bytes | dict[str, Any]] = {
        "empty": "", "not-json": "{", "python": "{'directed': True}", "list": "[]", "null": "null", "number": "1",
        "text": '"directed"', "two-documents": "{} {}", "not-utf8": b'{"id_column": "\xff"}', "nan": '{"directed":NaN}',
        "deep": "[" * 5_000 + "]" * 5_000, "huge": {"id_column": "x" * 100_000}, "unknown-key": {"separator": ";"},
        "path-npz": {"npz": "/etc/passwd"}, "path-nodes": {"nodes": "../x.csv", "edges": "/x.csv"},
        "code": {"__class__": "os.system"}, "directed-text": {"directed": "perhaps"}, "directed-list": {"directed": []},
        "directed-number": {"directed": 2}, "id-empty": {"id_column": ""}, "id-number": {"id_column": 3},
        "id-null": {"id_column": None}, "id-nul": {"id_column": "a\0"}, "id-line-break": {"id_column": "a\nb"},
        "id-surrogate": '{"id_column": "\\ud800"}', "label-list": {"label_column": ["a"]},
        "source-null": {"source_column": None}, "target-empty": {"target_column": ""},
        "weight-number": {"weight_column": 1.5}, "drop-text": {"drop_unknown": "maybe"},
    }  # fmt: skip
    for name, value in values.items():
        yield BadUpload(f"options-{name}", form([NAME, field("options", value), *tables()]), 422, "options")


def _bodies() -> Iterator[BadUpload]:
    whole = form([NAME, *tables()])
    yield BadUpload("body-empty", b"", 400, "body")
    yield BadUpload("body-cut-in-file", whole[:-150], 400, "body")
    yield BadUpload("body-cut-in-last-boundary", whole[:-6], 400, "body")
    yield BadUpload("body-cut-in-header", whole[:60], 400, "body")
    yield BadUpload("body-other-boundary", form([NAME, *tables()], "other"), 400, "body")
    yield BadUpload("body-line-feeds-only", whole.replace(b"\r\n", b"\n"), 400, "body")
    yield BadUpload("body-plain-text", b"name=bad", 400, "body")
    yield BadUpload("body-no-boundary", whole, 400, "body", content_type="multipart/form-data")
    yield BadUpload("body-empty-boundary", whole, 400, "body", content_type="multipart/form-data; boundary=")
    long = f"multipart/form-data; boundary={'b' * 500}"
    yield BadUpload("body-long-boundary", form([NAME], "b" * 500), 400, "body", content_type=long)
    for name, kind in {
        "none": None, "empty": "", "json": "application/json", "urlencoded": "application/x-www-form-urlencoded",
        "mixed": f"multipart/mixed; boundary={BOUNDARY}", "csv": "text/csv", "nonsense": ";;=",
    }.items():  # fmt: skip
        yield BadUpload(f"type-{name}", whole, 415, "body", content_type=kind)
    wrong_parts = {
        "no-disposition": b"Content-Type: text/plain\r\n\r\nx",
        "no-headers": b"\r\nx",
        "no-name": b"Content-Disposition: form-data\r\n\r\nx",
        "empty-name": b'Content-Disposition: form-data; name=""\r\n\r\nx',
        "attachment": b'Content-Disposition: attachment; name="name"\r\n\r\nx',
        "no-colon": b"Content-Disposition form-data\r\n\r\nx",
        "no-header-name": b": form-data\r\n\r\nx",
        "long-header": b"X-Long: " + b"x" * 10_000 + b"\r\n\r\nx",
        "many-headers": b"".join(b"X-%d: 1\r\n" % number for number in range(100)) + b"\r\nx",
        "binary-header": b"\x00\x01: form-data\r\n\r\nx",
    }
    for name, part in wrong_parts.items():
        yield BadUpload(f"part-{name}", form([NAME, part]), 400, "body")


def _parts() -> Iterator[BadUpload]:
    good, nodes, edges = archive(npz(**graph())), *tables()
    yield BadUpload("parts-none", form([NAME]), 422, "npz")
    yield BadUpload("parts-nodes-alone", form([NAME, nodes]), 422, "edges")
    yield BadUpload("parts-edges-alone", form([NAME, edges]), 422, "nodes")
    yield BadUpload("parts-npz-and-nodes", form([NAME, good, nodes]), 422, "nodes")
    yield BadUpload("parts-nodes-and-npz", form([NAME, nodes, edges, good]), 422, "npz")
    yield BadUpload("parts-unknown", form([NAME, good, field("colour", "red")]), 422, "colour")
    yield BadUpload("parts-unknown-file", form([NAME, Part("graph", npz(**graph()), "graph.npz")]), 422, "graph")
    for part in (NAME, good, nodes):
        yield BadUpload(f"parts-{part.name}-twice", form([NAME, part, part]), 422, part.name)
    yield BadUpload("parts-options-twice", form([field("options", {}), field("options", {}), NAME]), 422, "options")
    encoded = nodes._replace(headers=(b"Content-Transfer-Encoding: base64",))
    yield BadUpload("parts-base64", form([NAME, encoded, edges]), 422, "nodes")
    file_names = {
        "text": "nodes.txt", "excel": "nodes.xlsx", "compressed": "nodes.csv.gz", "none": None, "empty": "",
        "traversal": "../../../etc/passwd", "absolute": "/etc/shadow", "device": "/dev/zero", "dots": "..",
        "nul": "nodes.csv\0.txt", "windows": "C:\\nodes.doc", "json": "nodes.json", "pickle": "nodes.pkl",
        "script": "nodes.parquet.py",
    }  # fmt: skip
    for name, file_name in file_names.items():
        part = Part("nodes", nodes.content, file_name, "application/octet-stream")
        yield BadUpload(f"filename-{name}", form([NAME, part, edges]), 422, "nodes")
    part = Part("edges", edges.content, "edges", "application/json")
    yield BadUpload("filename-other-type", form([NAME, nodes, part]), 422, "edges")


def _archives() -> Iterator[BadUpload]:
    good = npz(**graph())
    plain = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", bytes(8))
    secret = bytearray(good)
    for at in (secret.index(b"PK\x03\x04") + 6, secret.index(b"PK\x01\x02") + 8):
        secret[at] |= 1
    lying = bytearray(zipped([("x.npy", plain)], method=zipfile.ZIP_DEFLATED))
    at = lying.index(b"PK\x01\x02")
    lying[at + 24 : at + 28] = (4_000_000_000).to_bytes(4, "little")
    directory = bytearray(good)
    end = directory.rindex(b"PK\x05\x06")
    directory[end + 12 : end + 16] = (2_000_000_000).to_bytes(4, "little")
    twice = bytearray(zipped([("x.npy", plain), ("y.npy", plain)]))
    second = twice.index(b"PK\x01\x02", twice.index(b"PK\x01\x02") + 4)
    twice[second + 42 : second + 46] = bytes(4)  # the second member begins where the first one does
    files = {
        "empty": b"", "no-zip": b"not a zip", "random": bytes(range(256)) * 40, "csv": b"id,a\n1,2\n",
        "gzip": b"\x1f\x8b" + bytes(100), "npy": plain, "parquet": parquet(id=[1, 2]), "pickle": pickle.dumps([1]),
        "cut-in-half": good[: len(good) // 2], "cut-at-the-end": good[:-10], "no-members": zipped([]),
        "begins-wrong": good[50:], "many-members": zipped([(f"a{n}.npy", plain) for n in range(101)]),
        "thousands-of-members": zipped([(f"a{n}.npy", b"") for n in range(5_000)]), "text": zipped([("x.txt", b"")]),
        "folder": zipped([("x/", b"")]), "slip": zipped([("../x.npy", plain)]), "below": zipped([("a/x.npy", plain)]),
        "slip-windows": zipped([("..\\x.npy", plain)]), "two-of-a-name": _two_of_a_name(plain),
        "encrypted": bytes(secret), "bzip2": zipped([("x.npy", plain)], method=zipfile.ZIP_BZIP2),
        "lzma": zipped([("x.npy", plain)], method=zipfile.ZIP_LZMA), "declares-4GB": bytes(lying), "bomb": _bomb(),
        "long-directory": bytes(directory), "overlapping": bytes(twice), "empty-member": zipped([("x.npy", b"")]),
        "nested": zipped([("x.npy", good)]), "objects": npz(**graph(ids=np.array(["a", None, 3, "d"], dtype=object))),
        "ragged": npz(**graph(x=np.array([[1], [1, 2]], dtype=object))),
        "fields": npz(**graph(y=np.zeros(4, dtype=[("a", "<i4"), ("b", "<f8")]))),
        "dates": npz(**graph(y=np.zeros(4, dtype="datetime64[s]"))), "complex": npz(**graph(x=np.ones((4, 2)) * 1j)),
        "bytes": npz(**graph(ids=np.array([b"a", b"b", b"c", b"d"]))), "void": npz(**graph(y=np.zeros(4, dtype="V8"))),
    }  # fmt: skip
    for name, content in files.items():
        yield BadUpload(f"zip-{name}", form([NAME, archive(content)]), 422, "npz")


def _headers() -> Iterator[BadUpload]:
    """Arrays whose headers lie or attack."""
    evil = pickle.dumps(Exception("never unpickled"))
    shape = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}".format
    files = {
        "pickle": npy(shape("|O", "(1,)"), evil), "object-in-fields": npy(shape("<f8,O", "(1,)"), evil),
        "promises-more": npy(shape("<f8", "(1000,)"), bytes(8)), "promises-a-terabyte": npy(shape("<f8", "(2**37,)")),
        "promises-terabytes": npy(shape("<f8", "(137438953472,)"), bytes(8)),
        "overflows": npy(shape("<f8", "(4611686018427387904, 4611686018427387904)"), bytes(8)),
        "negative": npy(shape("<f8", "(-1,)"), bytes(8)), "true": npy(shape("<f8", "(True,)"), bytes(8)),
        "half": npy(shape("<f8", "(1.5,)"), bytes(8)), "list": npy(shape("<f8", "[1]"), bytes(8)),
        "many-dimensions": npy(shape("<f8", f"({'1,' * 40})"), bytes(8)), "code": npy("__import__('os').system('id')"),
        "no-dictionary": npy("[1, 2]"), "no-shape": npy("{'descr': '<f8', 'fortran_order': False, }", bytes(8)),
        "more-keys": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'x': 1, }", bytes(8)),
        "nested": npy("(" * 3_000 + ")" * 3_000), "long": npy(" " * 60_000), "long-2": npy("x" * 70_000, version=2),
        "version-9": npy(shape("<f8", "(1,)"), bytes(8), version=9), "cut": npy(shape("<f8", "(1,)"))[:30],
        "wide-text": npy(shape("<U99999", "(1,)"), bytes(8)), "unknown-type": npy(shape("<q9", "(1,)"), bytes(8)),
        "no-magic": b"NUMPY" + bytes(100),
    }  # fmt: skip
    for name, content in files.items():
        yield BadUpload(f"npy-{name}", form([NAME, archive(zipped([("x.npy", content)]))]), 422, "npz")


def _graphs() -> dict[str, dict[str, Any]]:
    """Plain arrays that are no graph."""
    x = np.arange(8.0).reshape(4, 2)
    sparse = {"adj_indptr": [0, 1, 2, 2, 2], "adj_indices": [1, 0], "adj_shape": [4, 4]}
    features = {"attr_indptr": [0, 1, 1, 1, 1], "attr_indices": [0], "attr_shape": [4, 3]}
    return {
        "no-edges": graph(edge_index=None), "no-features": graph(x=None), "flat-x": graph(x=np.ones(4)),
        "deep-x": graph(x=np.ones((4, 2, 2))), "text-x": graph(x=np.array([["a"], ["b"], ["c"], ["d"]])),
        "no-columns": graph(x=np.ones((4, 0))), "nan": graph(x=np.where(x == 3, np.nan, x)),
        "infinite": graph(x=np.where(x == 3, np.inf, x)), "minus-infinite": graph(x=np.where(x == 3, -np.inf, x)),
        "overflowing": graph(x=x * 1e300), "transposed-edges": graph(edge_index=np.array([[0, 1], [1, 2], [2, 3]])),
        "float-edges": graph(edge_index=np.array([[0.5], [1.0]])), "edge-beyond": graph(edge_index=[[0], [4]]),
        "edge-negative": graph(edge_index=np.array([[0], [-1]])), "edge-rows": graph(edge_index=np.ones((3, 2), int)),
        "flat-edges": graph(edge_index=np.array([0, 1])), "ids-twice": graph(ids=np.array([1, 2, 2, 3])),
        "text-ids-twice": graph(ids=np.array(["a", "b", "c", "a"])), "ids-short": graph(ids=np.array([1, 2])),
        "ids-float": graph(ids=np.array([0.5, 1, 2, 3])), "ids-huge": graph(ids=np.full(4, 2**64 - 1, np.uint64)),
        "labels-short": graph(y=np.array([0, 1])), "labels-float": graph(y=np.array([0.5, 1, 2, 3])),
        "labels-negative": graph(y=np.array([0, 1, -2, 3])), "weight-negative": graph(edge_weight=[1.0, -1.0, 1.0]),
        "weight-nan": graph(edge_weight=[1.0, np.nan, 1.0]), "weight-short": graph(edge_weight=[1.0]),
        "weight-text": graph(edge_weight=["a", "b", "c"]), "adj-alone": graph(edge_index=None, adj_indptr=[0, 1]),
        "adj-oblong": graph(edge_index=None, **sparse | {"adj_shape": [4, 5]}),
        "adj-falling": graph(edge_index=None, **sparse | {"adj_indptr": [0, 2, 1, 2, 2]}),
        "adj-beyond": graph(edge_index=None, **sparse | {"adj_indices": [1, 9]}),
        "adj-other-size": graph(edge_index=None, **sparse | {"adj_indptr": [0, 1, 2], "adj_shape": [2, 2]}),
        "adj-data-short": graph(edge_index=None, **sparse, adj_data=[1.0]),
        "attr-beyond": graph(x=None, **features | {"attr_indices": [7]}),
        "attr-text": graph(x=None, **features, attr_data=["a"]),
        "attr-nan": graph(x=None, **features, attr_data=[np.nan]),
        "split-partial": graph(train=[0]), "split-beyond": graph(train=[0], val=[1], test=[9]),
        "split-twice": graph(train=[0], val=[0], test=[1]), "one-node": graph(x=np.ones((1, 2)), edge_index=[[0], [0]]),
        "no-nodes": graph(x=np.ones((0, 2)), edge_index=np.ones((2, 0), int)),
    }  # fmt: skip


def _two_of_a_name(plain: bytes) -> bytes:
    content = bytearray(zipped([("x.npy", plain), ("y.npy", plain)]))
    while (at := content.find(b"y.npy")) >= 0:
        content[at : at + 5] = b"x.npy"
    return bytes(content)


def _bomb() -> bytes:
    """260 MB of zeros in a few hundred kilobytes, with an honest header."""
    size = 260_000_000
    header = npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size // 400}, 100), }}")
    return zipped([("x.npy", header + bytes(size))], method=zipfile.ZIP_DEFLATED)
