"""Wrong requests, written by hand: rules between fields, bodies that are no JSON, parameters, headers, addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.contract.stage import CHECKING, REFUSED, SWEEP
from tests.service.api.server import SMALL

Headers = tuple[tuple[bytes, bytes], ...]
JSON: Headers = ((b"Content-Type", b"application/json"),)
SUBMISSIONS = ("/v1/jobs", "/v1/sweeps")


class BadRequest(NamedTuple):
    """What is sent as it stands, and how it must be refused.

    `field` must be named by `errors`, or, where the status is none of a document's, by the detail; none: nothing that
    could be named, such as an id that is not there.
    """

    name: str
    target: bytes  # path and query, encoded
    field: str | None
    statuses: tuple[int, ...] = (422,)
    method: str = "GET"
    body: bytes | None = None
    headers: Headers = ()
    announced: int | None = None  # Content-Length, where it is not the body's
    hosts: tuple[bytes, ...] | None = None  # none: the right one


def submission(name: str, body: Any, field: str | None, path: str = "/v1/jobs", **more: Any) -> BadRequest:
    """A POST; `body` is sent as JSON unless it is bytes."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    how = {"method": "POST", "headers": JSON} | more
    return BadRequest(f"{how['method']} {path} {name}", path.encode(), field, body=text, **how)


def bad_documents() -> Iterator[BadRequest]:
    """Every field would do by itself."""
    for name, (document, field) in _JOBS.items():
        yield submission(name, document, field)
        yield submission(name, document, field, "/v1/estimates")
        yield submission(name, {"base": document}, f"base.{field}", "/v1/sweeps")
    for name, (document, field) in _SWEEPS.items():
        yield submission(name, SWEEP | document, field, "/v1/sweeps")
    for name, (options, field) in _OPTIONS.items():
        for path, document in (("/v1/jobs", SMALL), ("/v1/estimates", SMALL), ("/v1/sweeps", SWEEP)):
            yield submission(f"option {name}", document | options, field, path)
        if "deadline_minutes" not in options:
            for path in ("/v1/jobs/queued", "/v1/sweeps/sweep-queued"):
                yield submission(f"option {name}", options, field, path, method="PATCH")
    for path in ("/v1/jobs/queued", "/v1/sweeps/sweep-queued"):
        yield submission("nothing to change", {}, "body", path, method="PATCH")
        yield submission("change of the spec", {"spec": SMALL}, "spec", path, method="PATCH")
        yield submission("priority null", {"priority": None}, "priority", path, method="PATCH")
    ended = {"method": "PATCH", "statuses": (409,)}
    yield submission("priority of one that has ended", {"priority": 1}, "priority", "/v1/jobs/failed", **ended)
    yield submission("name twice", SMALL | {"name": "a"}, "name", "/v1/jobs?name=b")
    yield submission("nothing at all", {}, "body")
    yield submission("nothing but a name", {"name": "a"}, "body")
    twice = b'{"run": {"seed": 1}, "run": {"seed": -1}}'
    yield submission("key-twice-the-last-wrong", twice, "run.seed")
    yield submission("without-base", {}, "base", "/v1/sweeps")


def _space(**dimension: Any) -> dict[str, Any]:
    return {"space": {"optimiser.lr": dimension}}


_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "name-empty": ({"name": ""}, "name"),
    "name-long": ({"name": "x" * 201}, "name"),
    "name-number": ({"name": 1}, "name"),
    "name-that-moves-the-cursor": ({"name": "a\x1b[2J"}, "name"),
    "priority-high": ({"priority": 101}, "priority"),
    "priority-half": ({"priority": 0.5}, "priority"),
    "deadline-past": ({"deadline_minutes": 0}, "deadline_minutes"),
    "metadata-list": ({"metadata": [1]}, "metadata"),
    "metadata-number": ({"metadata": {"team": 1}}, "metadata.team"),
    "metadata-nested": ({"metadata": {"team": {"a": "b"}}}, "metadata.team"),
    "metadata-long": ({"metadata": {"team": "x" * 257}}, "metadata.team"),
    "metadata-escape": ({"metadata": {"team": "\x1b[2J"}}, "metadata.team"),
    "metadata-key-with-space": ({"metadata": {"a b": "c"}}, "metadata"),
    "metadata-key-empty": ({"metadata": {"": "c"}}, "metadata"),
    "metadata-key-long": ({"metadata": {"k" * 65: "c"}}, "metadata"),
    "metadata-many": ({"metadata": {f"k{n}": "x" for n in range(21)}}, "metadata"),
}
_HUGE = {"data": {"name": "synthetic", "synthetic": {"nodes": 100_000_000, "features": 10_000}}}
_JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown-set": ({"data": {"name": "karate"}}, "data.name"),
    "set-as-list": ({"data": {"name": ["cora", "pubmed"]}}, "data.name"),
    "never-uploaded": ({"data": {"name": "imported", "imported": "never-there"}}, "data.imported"),
    "upload-being-checked": ({"data": {"name": "imported", "imported": CHECKING}}, "data.imported"),
    "upload-refused": ({"data": {"name": "imported", "imported": REFUSED}}, "data.imported"),
    "imported-without-name": ({"data": {"name": "imported"}}, "data.imported"),
    "imported-with-other-set": ({"data": {"name": "digits", "imported": "papers"}}, "data.imported"),
    "imported-hidden": ({"data": {"name": "imported", "imported": ".papers"}}, "data.imported"),
    "files-of-the-service": ({"data": {"name": "files", "files": {"npz": "/etc/passwd"}}}, "data.name"),
    "files-by-url": ({"data": {"name": "files", "files": {"nodes": "http://x/n.csv", "edges": "s3://e"}}}, "data.name"),
    "files-up": ({"data": {"name": "files", "files": {"npz": "../../../x.npz"}}}, "data.name"),
    "files-missing": ({"data": {"name": "files"}}, "data.files"),
    "files-half": ({"data": {"name": "files", "files": {"nodes": "n.csv"}}}, "data.files"),
    "files-and-set": ({"data": {"name": "cora", "files": {"npz": "x.npz"}}}, "data.files"),
    "synthetic-and-set": ({"data": {"name": "cora", "synthetic": {"nodes": 10}}}, "data.synthetic"),
    "classes-exceed-nodes": ({"data": {"name": "synthetic", "synthetic": {"nodes": 3}}}, "data.synthetic"),
    "classes-exceed-features": ({"data": {"name": "synthetic", "synthetic": {"features": 2}}}, "data.synthetic"),
    "hops-are-not-layers": ({"sampling": {"num_neighbors": [5, 5, 5]}}, "sampling.num_neighbors"),
    "hop-of-none": ({"sampling": {"num_neighbors": [5, 0]}}, "sampling"),
    "overflow": ({"method": {"temperature": 0.026}}, "method.temperature"),
    "alpha-of-the-wrong-unit": ({"method": {"reg": {"coefficient": 50, "scale": "n_minus_1"}}}, "method.reg"),
    "unknown-preset": ({"preset": "best"}, "preset"),
    "preset-by-path": ({"preset": "../nml"}, "preset"),
    "preset-without-settings": ({"preset": "nml-official", "data": {"name": "digits"}}, "preset"),
    "memory": (_HUGE, "sampling"),
    "memory-of-exact-contrast": (_HUGE | {"sampling": {"negatives": "graph"}}, "sampling"),
    "dotted-key": ({"method.temperature": 0.5}, "method.temperature"),
    "prototype": ({"__proto__": {"admin": True}}, "__proto__"),
    "class": ({"data": {"__class__": "os.system"}}, "data.__class__"),
    "directory": ({"run": {"directory": "/etc"}}, "run.directory"),
    "command": ({"run": {"command": ["rm", "-rf", "/"]}}, "run.command"),
    "environment": ({"environment": {"LD_PRELOAD": "x.so"}}, "environment"),
    "image": ({"run": {"image": "evil/latest"}}, "run.image"),
}  # fmt: skip
_SWEEPS: dict[str, tuple[dict[str, Any], str]] = {
    "space-of-the-run": ({"space": {"run.seed": {"kind": "choice", "values": [1]}}}, "space.run.seed"),
    "space-of-the-data": ({"space": {"data.name": {"kind": "choice", "values": ["cora"]}}}, "space.data.name"),
    "space-unknown": ({"space": {"method.heat": {"kind": "uniform", "low": 0, "high": 1}}}, "space.method.heat"),
    "space-empty-path": ({"space": {"": {"kind": "uniform", "low": 0, "high": 1}}}, "space"),
    "space-dots": ({"space": {"..": {"kind": "uniform", "low": 0, "high": 1}}}, "space"),
    "space-list": ({"space": []}, "space"),
    "space-of-word": ({"space": {"optimiser.lr": "all"}}, "space.optimiser.lr"),
    "space-part-of-another": (
        {"space": {
            "method.reg": {"kind": "choice", "values": [{"coefficient": 1}]},
            "method.reg.coefficient": {"kind": "uniform", "low": 1, "high": 2},
        }},
        "space.method.reg.coefficient",
    ),
    "space-too-many": ({"space": {f"optimiser.x{n}": {"kind": "choice", "values": [1]} for n in range(51)}}, "space"),
    "kind-unknown": (_space(kind="eval", values=[1]), "space.optimiser.lr"),
    "kind-missing": (_space(values=[0.1]), "space.optimiser.lr"),
    "range-upside-down": (_space(kind="uniform", low=1, high=0), "space.optimiser.lr"),
    "range-of-one-point": (_space(kind="uniform", low=0.1, high=0.1), "space.optimiser.lr"),
    "range-of-words": (_space(kind="uniform", low="a", high="b"), "space.optimiser.lr"),
    "range-without-end": (_space(kind="uniform", low=0.1), "space.optimiser.lr"),
    "range-nan": (_space(kind="uniform", low=float("nan"), high=1), "space.optimiser.lr.low"),
    "range-infinite": (_space(kind="uniform", low=0.1, high=float("inf")), "space.optimiser.lr.high"),
    "range-beyond-the-field": (_space(kind="uniform", low=0.1, high=7), "space.optimiser.lr"),
    "logarithm-of-zero": (_space(kind="loguniform", low=0, high=1), "space.optimiser.lr"),
    "logarithm-of-less": (_space(kind="loguniform", low=-1, high=1), "space.optimiser.lr"),
    "values-none": (_space(kind="choice", values=[]), "space.optimiser.lr"),
    "values-word": (_space(kind="choice", values="0.1"), "space.optimiser.lr"),
    "values-beyond-the-field": (_space(kind="grid", values=[0.1, 9]), "space.optimiser.lr"),
    "values-nested": (_space(kind="choice", values=[[[0.1]]]), "space.optimiser.lr"),
    "values-thousands": (_space(kind="choice", values=[0.1] * 1_001), "space.optimiser.lr"),
    "values-tens-of-thousands": (_space(kind="choice", values=[0.1] * 10_001), "space"),
    "fractions-of-whole": (
        {"space": {"optimiser.epochs": {"kind": "uniform", "low": 5, "high": 9}}}, "space.optimiser.epochs"
    ),
    "whole-huge": (
        {"space": {"optimiser.epochs": {"kind": "integer", "low": 1, "high": 10**400}}}, "space.optimiser.epochs"
    ),
    "start-outside": ({"starts": [{"optimiser.lr": 0.1}]}, "starts.0.optimiser.lr"),
    "start-wrong": ({"starts": [{"method.temperature": "hot"}]}, "starts.0"),
    "start-second-wrong": ({"starts": [{}, {"method.temperature": 0}]}, "starts.1"),
    "start-list": ({"starts": [[]]}, "starts.0"),
    "starts-object": ({"starts": {}}, "starts"),
    "starts-thousands": ({"starts": [{}] * 1_001}, "starts"),
    "starts-tens-of-thousands": ({"starts": [{}] * 10_001}, "starts"),
    "grid-over-ranges": ({"algorithm": "grid"}, "space.method.temperature"),
    "labels-needed": ({"base": {"data": {"name": "synthetic", "synthetic": {"classes": 1}}}}, "objective"),
    "edges-needed": ({"objective": "link_auc", "held_out_edges": 0}, "objective"),
    "workers": ({"base": SMALL | {"run": {"workers": 2}}}, "base.run.workers"),
    "memory-of-a-thousand": ({"concurrency": 1_000}, "concurrency"),
    "memory-of-its-own": ({"resources": {"memory_gb": 0.1}}, "resources.memory_gb"),
}  # fmt: skip


def bad_bodies() -> Iterator[BadRequest]:
    """No JSON, or no object."""
    whole = json.dumps(SMALL).encode()
    texts = {f"cut-after-{at}": whole[:at] for at in range(1, len(whole), 23)} | NO_JSON
    for path in (*SUBMISSIONS, "/v1/estimates"):
        for name, text in texts.items():
            yield submission(f"body {name}", text, "body", path, statuses=(400,))
        for name, text in {"list": b"[]", "null": b"null", "text": b'"x"', "number": b"0", "true": b"true"}.items():
            yield submission(f"body {name}", text, "body", path)
        for kind in (b"", b"text/plain", b"text/json", b"application/x-www-form-urlencoded", b"multipart/form-data",
                     b"application/xml", b"application/json; charset=utf-16", b"application/jsonx", b"json", b"*/*",
                     b"application/x-yaml", b"application/octet-stream"):  # fmt: skip
            headers = ((b"Content-Type", kind),)
            yield submission(f"type {kind!r}", whole, "content-type", path, headers=headers, statuses=(415,))
        for coding in (b"gzip", b"br", b"deflate, gzip", b"zstd", b"x"):
            headers = (*JSON, (b"Content-Encoding", coding))
            yield submission(f"coding {coding!r}", whole, "content-encoding", path, headers=headers, statuses=(415,))
        for size in (1_000_001, 10**9, 10**17):
            yield submission(f"announces {size}", b"", "body", path, announced=size, statuses=(413,))


NO_JSON = {
    "nothing": b"", "blank": b" \r\n\t", "closed-twice": b"{}}", "two": b"{} {}", "comma": b'{"run": {},}',
    "no-colon": b'{"run" {}}', "bare-key": b"{run: {}}", "single-quotes": b"{'run': {}}", "comment": b"{} // x",
    "python": b'{"run": {"track": True}}', "undefined": b'{"run": undefined}', "nan": b"nan",
    "leading-zero": b'{"run": {"seed": 01}}', "plus": b'{"run": {"seed": +1}}', "no-zero": b'{"optimiser": {"lr": .5}}',
    "no-digits": b'{"optimiser": {"lr": 1.}}', "hex": b'{"run": {"seed": 0x10}}', "underscore": b'{"seed": 1_000}',
    "digits": b'{"run": {"seed": ' + b"9" * 10_000 + b"}}", "xml": b"<run><seed>1</seed></run>",
    "yaml": b"run:\n  seed: 1\n", "toml": b"[run]\nseed = 1\n", "form": b"run=1&seed=2", "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"run": {}}'.encode("utf-16"), "utf-16-plain": '{"run": {}}'.encode("utf-16-le"),
    "utf-32": "{}".encode("utf-32"), "latin-1": b'{"run": {"name": "caf\xe9"}}', "byte": b'{"run": {"name": "\xff"}}',
    "overlong": b'{"run": {"name": "\xc0\xaf"}}', "surrogate-bytes": b'{"run": {"name": "\xed\xa0\x80"}}',
    "half-a-pair": b'{"run": {"name": "\\ud800"}}', "other-half": b'{"run": {"name": "\\udc00"}}',
    "half-in-key": b'{"\\ud800": 1}', "pair-turned": b'{"run": {"name": "\\udc00\\ud800"}}',
    "bad-escape": b'{"a": "\\x"}', "cut-escape": b'{"a": "\\u12"}', "raw-break": b'{"a": "\n"}',
    "raw-nul": b'{"a": "\x00"}', "raw-escape": b'{"a": "\x1b"}', "ends-in-nul": b"{}\x00", "begins-with-nul": b"\x00{}",
    "lists": b"[" * 5_000 + b"]" * 5_000, "open-lists": b"[" * 90_000,
    "objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "gzip": b"\x1f\x8b\x08\x00" + bytes(40),
    "zip": b"PK\x03\x04" + bytes(40), "pickle": b"\x80\x04]\x94.", "bytes": bytes(range(256)),
}  # fmt: skip


def bad_headers() -> Iterator[BadRequest]:
    """Whatever else comes with a request."""
    whole, jobs = json.dumps(SMALL).encode(), b"/v1/jobs"
    for name, key in _IDEMPOTENCY_KEYS.items():
        headers = (*JSON, (b"Idempotency-Key", key))
        for path in SUBMISSIONS:
            yield submission(f"idempotency {name}", whole, "idempotency-key", path, headers=headers)
    for text in _EVENT_NUMBERS:
        headers = ((b"Last-Event-ID", text),)
        for stream in (b"/v1/jobs/running/events", b"/v1/sweeps/sweep-running/events"):
            yield BadRequest(f"{stream!r} last event {text!r}", stream, "last-event-id", headers=headers)
    for host in _OTHER_HOSTS:
        yield BadRequest(f"host {host!r}", jobs, "host", (421,), hosts=(host,))
    for hosts in ((), (b"",), (b"localhost", b"evil.example"), (b"localhost", b"localhost")):
        yield BadRequest(f"hosts {hosts!r}", jobs, "host", (400,), hosts=hosts)
    for origin in _OTHER_ORIGINS:
        yield BadRequest(f"origin {origin!r}", jobs, "origin", (403,), headers=((b"Origin", origin),))
    for value in _NO_KEYS:
        for header in (b"Authorization", b"X-API-Key"):
            yield BadRequest(f"{header!r} {value[:20]!r}", jobs, "key", (401,), headers=((header, value),))
    vectors = b"/v1/jobs/succeeded/embeddings/vectors.npy"
    for text in (b"bytes=x", b"5", b"bytes=9-3", b"bytes"):
        yield BadRequest(f"range {text!r}", vectors, "range", (400,), headers=((b"Range", text),))
    yield BadRequest("range beyond", vectors, None, (416,), headers=((b"Range", b"bytes=500-"),))


_IDEMPOTENCY_KEYS = {
    "empty": b"", "long": b"k" * 201, "space": b"a b", "tab": b"a\tb", "latin-1": b"caf\xe9", "utf-8": "🔑".encode(),
}  # fmt: skip
_EVENT_NUMBERS = (
    b"abc", b"-1", b"1.5", b"9" * 30, b"", b"inf", b"0x1", b"1 2", b"null", b"\xff", b"1e3", b"9007199254740993",
)  # fmt: skip
_OTHER_HOSTS = (
    b"evil.example", b"10.0.0.1", b"localhost.evil.example", b"[::2]", b"127.0.0.1@evil.example", b"\xff",
    b"localhost.", b"localhost,evil.example",
)  # fmt: skip
_OTHER_ORIGINS = (
    b"https://evil.example", b"null", b"http://localhost.evil.example", b"file://", b"//", b"*", b"http://[", b"\xff",
    b"", b"http://127.0.0.1:1",
)  # fmt: skip
_NO_KEYS = (
    b"Bearer nml_0_0", b"Bearer", b"Basic eDp5", b"Bearer \xff", b"", b"nml_0_0", b"' OR 1=1 --", b"k" * 5_000,
)  # fmt: skip
