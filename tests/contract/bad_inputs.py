"""All that must be refused: what is made from the schemas and from the OpenAPI document, and what is written by hand.

Uploads are apart, in tests/service/datasets/bad_uploads.py, since some of them need a process that imports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from service.app import create_app
from service.settings import Settings
from tests.contract.bad_questions import bad_questions
from tests.contract.bad_requests import JSON, BadRequest, bad_bodies, bad_documents, bad_headers, submission
from tests.contract.bad_specs import bad_sweep_specs, bad_train_specs
from tests.contract.stage import ALIAS, NODE, READY, VERSION

GOOD = b'{"data": {"name": "digits"}}'
GOOD_SWEEP = b'{"base": {"data": {"name": "digits"}}, "concurrency": 1}'
NAMED = {"job_id": "succeeded", "name": "loss.png", "file": "vectors.npy", "ref": READY}
NAMED |= {"version": VERSION, "node": NODE, "alias": ALIAS}


def bad_specs() -> Iterator[BadRequest]:
    for case in bad_train_specs():
        yield submission(case.name, case.document, case.field)
    for case in bad_sweep_specs():
        yield submission(case.name, case.document, case.field, "/v1/sweeps")


def bad_parameters() -> Iterator[BadRequest]:
    """Every parameter of every query, by its schema; and what is refused whatever the parameter."""
    for method, path, operation in _operations():
        target = path.format_map(NAMED if "/sweeps/" not in path else NAMED | {"job_id": "sweep-running"})
        for parameter in operation.get("parameters", ()):
            if parameter["in"] != "query":
                continue
            name = parameter["name"]
            for value in _wrong_texts(parameter["schema"]):
                yield _asked(method, target, f"{name}={value}", name)
            yield _asked(method, target, f"{name}=%00", None, (400,))
            yield _asked(method, target, f"{name}=a%00b", None, (400,))
    for query in ("known:-1", "known:1e3", "known:9999999999", "uploaded:..%2f", "uploaded:a b", "7"):
        yield _asked("get", "/v1/datasets", f"cursor={query.replace(' ', '%20')}", "cursor")
    for path in ("/v1/jobs", "/v1/sweeps"):
        yield _asked("get", path, "&".join(["state=queued"] * 7), "state")


def bad_addresses() -> Iterator[BadRequest]:
    """Every parameter of every path."""
    for method, path, operation in _operations():
        names = [item["name"] for item in operation.get("parameters", ()) if item["in"] == "path"]
        for parameter in names:
            good = NAMED | ({"job_id": "sweep-succeeded"} if "/sweeps/" in path else {})
            for text in _TRICKS:
                target = path.format_map(good | {parameter: text})
                body = b"" if method == "post" else None
                name = f"{method} {target[:150]}"
                yield BadRequest(name, target.encode(), None, (400, 404, 422), method.upper(), body)
    for target in _NOWHERE:
        yield BadRequest(f"get {target}", target.encode(), None, (404,))


CORPORA: dict[str, Callable[[], Iterator[BadRequest]]] = {
    "specs": bad_specs, "documents": bad_documents, "bodies": bad_bodies, "headers": bad_headers,
    "parameters": bad_parameters, "addresses": bad_addresses, "questions": bad_questions,
}  # fmt: skip

_NOWHERE = (
    "/v1", "/v2/jobs", "/v1/jobs/", "//v1/jobs", "/v1//jobs", "/V1/JOBS", "/v1/jobs;a=b", "/v1/../v1/jobs",
    "/.env", "/etc/passwd", "/static/../../service.db", "/docs/", "/redoc", "/graphql", "/admin",
    "/v1/jobs/succeeded/embeddings", "/v1/jobs/succeeded/figures/", "/v1/jobs/succeeded/spec.json",
)  # fmt: skip
_TRICKS = (
    "..", ".", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%2fservice.db", "..%5c..%5cservice.db", "%252e%252e%252f",
    "%00", "succeeded%00.png", "%0d%0aSet-Cookie:%20a=b", "x" * 5_000, "%F0%9F%92%A9", "%ff%fe", "%c0%ae%c0%ae%c0%af",
    "'%20OR%201=1--", "%22;DROP%20TABLE%20jobs", "$(id)", "%7B%7B7*7%7D%7D", "%E2%80%AE", "-1", "9" * 400, "%20",
    "~root", "%25s%25n", "file:%2f%2f%2fetc%2fpasswd", "succeeded%20", "%C5%BFucceeded",
)  # fmt: skip


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    document = create_app(Settings(home=Path("nowhere"))).openapi()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def _asked(method: str, target: str, query: str, field: str | None, statuses: tuple[int, ...] = (422,)) -> BadRequest:
    """A request that would do without this query."""
    body = None if method == "get" else GOOD_SWEEP if target.startswith("/v1/sweeps") else GOOD
    name = f"{method} {target}?{query[:80]}"
    headers = () if body is None else JSON
    return BadRequest(name, f"{target}?{query}".encode(), field, statuses, method.upper(), body, headers)


def _wrong_texts(schema: dict[str, Any]) -> Iterator[str]:
    """Texts, percent-encoded, that no parameter of this schema takes."""
    for kind in schema.get("anyOf", [schema]):
        match kind.get("type"):
            case "integer":
                yield from (
                    "abc",
                    "",
                    "1.5",
                    "0x10",
                    "1e400",
                    "true",
                    "null",
                    "%2B",
                    "--1",
                    "NaN",
                    "9" * 5_000,
                    "[1]",
                    "1,2",
                )
                yield from (str(kind["minimum"] - 1), str(kind["maximum"] + 1), str(-(2**63) - 1), str(2**64))
            case "number":
                yield from (
                    "abc",
                    "",
                    "nan",
                    "NaN",
                    "inf",
                    "-Infinity",
                    "1e999",
                    "0x10",
                    "1,5",
                    "--1",
                    "null",
                    "-1",
                    "1e300",
                )
                if "maximum" in kind:
                    yield from (str(kind["exclusiveMinimum"]), str(kind["maximum"] + 1))
            case "array":
                yield from ("lost", "QUEUED", "", "queued,running", "queued%20", "0", "%27", "..%2f")
            case "string":
                if "maxLength" in kind:
                    yield "x" * (kind["maxLength"] + 1)
                if kind.get("minLength"):
                    yield ""
                if kind.get("pattern", "").startswith("^[^\\x00"):  # printable
                    yield from ("a%0ab", "a%0d", "%01", "%1b[31m", "%7f", "%09")
                elif "pattern" in kind:  # letters, digits and a few signs
                    texts = ("..%2f", "a%20b", "%27", "a.b", "%F0%9F%92%A9", "%0a", "a" * 500, "%25")
                    yield from (text for text in texts if not re.fullmatch(kind["pattern"], unquote(text)))
