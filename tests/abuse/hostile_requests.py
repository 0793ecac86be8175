"""Requests that are as large, odd, deep or many as a client can make them: every route of the OpenAPI document, every
parameter, every member of every body; valid ones at their limits, and bodies of no form at all.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.contract.stage import ALIAS, NODE, READY, SWEEP
from tests.service.api.server import SMALL

ROWS, DIM = 20_000, 128  # of the large version
LARGE = "01k9vect0rs000000000000002"
JSON = {"Content-Type": "application/json"}
QUESTION, DOCUMENT, UPLOAD = 8_000_000, 1_000_000, 20_000_000  # bytes
BINARY = 64_000_000
HEAD = 60_000  # bytes that a head may have, nearly
ODD = ("x" * HEAD, "%F0%9F%98%80" * (HEAD // 12), "..%2F" * (HEAD // 5), "%5B" * (HEAD // 3), "-" + "9" * HEAD)
BOUNDARY = "b" * 70


class Hostile(NamedTuple):
    """One request."""

    name: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes | None = None


def hostile_requests(document: dict[str, Any]) -> Iterator[Hostile]:
    """All of them. document: OpenAPI."""
    schemas = document["components"]["schemas"]
    for template, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _of_operation(template, method.upper(), operation, schemas)
    yield from _heads()
    yield from valid_requests()


def _there(template: str) -> str:
    """The path, with what there is in place of its parameters."""
    values = {"name": "loss.png", "file": "vectors.npy", "ref": READY, "version": LARGE, "node": NODE, "alias": ALIAS}
    values["job_id"] = "sweep-running" if "/sweeps/" in template else "running"
    return template.format_map(values)


def _of_operation(template: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[Hostile]:
    path, name = _there(template), f"{method} {template}"
    deletes = method == "DELETE"
    if not deletes:  # what is there is needed by the others
        yield Hostile(f"{name} as it is", method, path, {})
    parameters = re.findall(r"\{(\w+)\}", template)
    for parameter, (at, odd) in itertools.product(parameters, enumerate(ODD)):
        parts = template.split("{" + parameter + "}")
        yield Hostile(f"{name} {parameter} odd {at}", method, _there(parts[0]) + odd + _there(parts[1]), {})
    if deletes:
        return
    for query in operation.get("parameters", []):
        if query["in"] != "query":
            continue
        many = "&".join([f"{query['name']}=1"] * (HEAD // (len(query["name"]) + 3)))
        largest = _largest(query["schema"])
        for at, text in enumerate((*(f"{query['name']}={odd}" for odd in ODD), many, f"{query['name']}={largest}")):
            yield Hostile(f"{name} query {query['name']} {at}", method, f"{path}?{text}", {})
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        schema = content["application/json"].get("schema", {})
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rpartition("/")[2]]
        question = "/v1/embeddings/{version}/" in template and not template.endswith("index")
        for kind, body in _bodies(list(schema.get("properties", {})) or ["base"], QUESTION if question else DOCUMENT):
            yield Hostile(f"{name} body {kind}", method, path, JSON, body)
    if "application/octet-stream" in content:
        for kind, media, body in _binaries():
            yield Hostile(f"{name} binary {kind}", method, f"{path}?k=10", {"Content-Type": media}, body)
    if "multipart/form-data" in content:
        for kind, body in _forms():
            headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
            yield Hostile(f"{name} form {kind}", method, path, headers, body)


def _largest(schema: dict[str, Any]) -> Any:
    options = [schema, *schema.get("anyOf", [])]
    return next((option["maximum"] for option in options if "maximum" in option), 10**9)


def _filled(item: bytes, size: int, before: bytes = b"[", after: bytes = b"]") -> bytes:
    """A list of as many of these items as have room."""
    count = (size - len(before) - len(after)) // (len(item) + 1)
    return before + b",".join([item] * count) + after


def _bodies(members: list[str], size: int) -> Iterator[tuple[str, bytes]]:
    """JSON in every shape that parsers and validators dislike."""
    room = size - 200
    yield "blank", b" " * room
    yield "open lists", b"[" * room
    yield "open objects", b'{"a":' * (room // 5)
    yield "lists in lists", b"[" * (room // 2) + b"]" * (room // 2)
    yield "unknown keys", b"{" + b",".join(b'"k%d":0' % at for at in range(room // 12)) + b"}"
    yield "the same key", b"{" + b",".join([b'"a":0'] * (room // 6)) + b"}"
    yield "nothing but quotes", b'"' * room
    yield "escapes", b'{"a":"' + b"\\u0041" * (room // 6) + b'"}'
    shapes = {
        "long text": b'"' + b"x" * room + b'"', "wide text": '"{}"'.format("\N{GRINNING FACE}" * (room // 4)).encode(),
        "digits": b"9" * room, "zeros": _filled(b"0", room), "empty texts": _filled(b'""', room),
        "empty lists": _filled(b"[]", room), "empty objects": _filled(b"{}", room),
        "long numbers": _filled(b"-1.2345678901234567e-300", room), "nulls": _filled(b"null", room),
        "texts": b"[" + b",".join(b'"t%d"' % at for at in range(room // 11)) + b"]",
        "few long texts": _filled(b'"' + b"x" * (room // 7) + b'"', room),
        "deep": b"[" * 100 + b"0" + b"]" * 100, "deeper": b'{"a":' * (room // 6) + b"0" + b"}" * (room // 6),
        "many keys": b"{" + b",".join(b'"%d":0' % at for at in range(room // 12)) + b"}",
    }  # fmt: skip
    for member, (shape, text) in itertools.product(members, shapes.items()):
        yield f"{member}: {shape}", b'{"%s":%s}' % (member.encode(), text)
    together = b",".join(b'"%s":%s' % (name.encode(), _filled(b"0", room // len(members))) for name in members)
    yield "all members", b"{" + together + b"}"


def _binaries() -> Iterator[tuple[str, str, bytes]]:
    raw, npy = "application/octet-stream", "application/x-npy"
    yield "zeros", raw, bytes(BINARY)
    yield "most vectors", raw, np.random.default_rng(0).random((1_000, DIM), np.float32).tobytes()
    yield "no file", npy, bytes(BINARY)
    yield "long head", npy, b"\x93NUMPY\x02\x00" + (BINARY - 100).to_bytes(4, "little") + b"(" * (BINARY - 200)
    head = b"{'descr': '<f4', 'fortran_order': True, 'shape': (10000000000, 128)}"
    yield "huge shape", npy, b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(1_000)


def _forms() -> Iterator[tuple[str, bytes]]:
    start, end = f"--{BOUNDARY}\r\n".encode(), f"\r\n--{BOUNDARY}--\r\n".encode()
    field = start + b'Content-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    file = start + b'Content-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n'
    yield "parts", (field % (b"name", b"x")) * (UPLOAD // 150)
    yield "unknown parts", b"".join(field % (b"p%d" % at, b"x") for at in range(UPLOAD // 150))
    yield "headers", start + b"X: y\r\n" * (UPLOAD // 6)
    yield "a long header", start + b"X: " + b"y" * UPLOAD
    yield "a long name", field % (b"x" * UPLOAD, b"x") + end
    yield "a long field", field % (b"name", b"x" * UPLOAD) + end
    yield "deep options", field % (b"options", b"[" * 60_000) + end
    yield "preamble", b"x" * UPLOAD
    yield "line breaks", start + b"\r\n" * (UPLOAD // 2)
    yield "epilogue", field % (b"name", b"x") + end + b"x" * UPLOAD
    yield "a large file", field % (b"name", b"large") + file % (b"npz", b"g.npz") + bytes(UPLOAD) + end
    yield "half boundaries", field % (b"name", b"h") + file % (b"npz", b"g.npz") + start[:-4] * (UPLOAD // 70)


def _heads() -> Iterator[Hostile]:
    """Headers that some code takes apart."""
    node, download = f"/v1/embeddings/{LARGE}/nodes/7", f"/v1/embeddings/{LARGE}/download"
    tags, kinds = '"a",' * (HEAD // 4), "a/b;q=0.1," * (HEAD // 10)
    ranges = "bytes=" + "0-0," * (HEAD // 4) + "1-1"
    for target in (node, download, f"/v1/embeddings/{LARGE}", "/v1/jobs/succeeded/embeddings/vectors.npy"):
        for name, value in {
            "Accept": kinds, "If-None-Match": tags, "Range": ranges, "If-Range": tags, "Origin": "http://" + "a" * HEAD,
            "X-Forwarded-For": "1.2.3.4," * (HEAD // 8), "Last-Event-ID": "9" * HEAD, "Cookie": "a=b;" * (HEAD // 4),
        }.items():  # fmt: skip
            yield Hostile(f"{target} {name}", "GET", target, {name: value})
    yield Hostile("lines", "GET", node, {f"X-{at}": "y" for at in range(5_000)})


def valid_requests() -> Iterator[Hostile]:
    """What is allowed, as large as it may be."""
    version = f"/v1/embeddings/{LARGE}"
    ids = list(range(10_000))
    queries = np.random.default_rng(1).random((1_000, DIM)).round(6).tolist()
    bodies: dict[str, dict[str, Any]] = {
        "lookup": {"ids": ids},
        "lookup unknown": {"ids": ["x" * 180 + str(at) for at in ids]},
        "neighbors": {"ids": ids[:1_000], "k": 1_000},
        "neighbors with vectors": {"ids": ids[:30], "k": 1_000, "include_vectors": True},
        "neighbors of vectors": {"vectors": queries, "k": 1_000},
        "neighbors among": {"ids": ids[:1_000], "k": 1_000, "filter": {"ids": ids}},
        "neighbors among unknown": {"ids": ids[:1_000], "k": 10, "filter": {"ids": [f"u{at}" for at in ids]}},
        "embed": {"nodes": [{"features": [0.5] * 250} for _ in range(1_000)]},
        "embed edges": {"nodes": [{"features": [0.5], "edges": ids[:300]} for _ in range(1_000)]},
        "classify": {"ids": ids, "labels": [f"c{at % 50}" for at in ids], "predict": ids},
        "classify long": {"ids": ids[:25], "labels": ["x" * 300_000 + str(at) for at in range(25)], "predict": ids},
        "classify many": {"ids": ids, "labels": [f"class {at}" for at in ids]},
    }
    for name, body in bodies.items():
        for form in ("application/json", "application/vnd.apache.arrow.stream", "application/octet-stream"):
            target = f"{version}/{name.partition(' ')[0]}"
            yield Hostile(f"{name} as {form}", "POST", target, JSON | {"Accept": form}, json.dumps(body).encode())
    for form in ("npy", "parquet", "ids"):
        yield Hostile(f"download {form}", "GET", f"{version}/download?format={form}", {})
    for what in ("log?tail=1000000", "log?tail=10000", "metrics", "metrics?limit=100000", "events", "events?after=0"):
        yield Hostile(f"of a long run: {what}", "GET", f"/v1/jobs/running/{what}", {})
    starts = [{"method.temperature": 0.3 + at / 10_000} for at in range(1_000)]
    grid = {f"method.reg.x{at}": {"kind": "grid", "values": list(range(1_000))} for at in range(50)}
    sweeps = {"starts": SWEEP | {"starts": starts}, "grid": SWEEP | {"space": grid, "algorithm": "grid"}}
    for name, body in sweeps.items():
        yield Hostile(f"sweep {name}", "POST", "/v1/sweeps", JSON, json.dumps(body).encode())
    huge = SMALL | {"data": {"name": "synthetic", "synthetic": {"nodes": 100_000_000, "features": 10_000}}}
    yield Hostile("huge job", "POST", "/v1/jobs", JSON, json.dumps(huge).encode())
