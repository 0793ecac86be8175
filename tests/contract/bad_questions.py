"""Wrong questions about vectors, and wrong orders about versions and aliases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.contract.bad_requests import JSON, NO_JSON, BadRequest
from tests.contract.stage import VERSION

ONE = f"/v1/embeddings/{VERSION}"
REQUEST_BODIES = ("lookup", "neighbors", "scores", "classify")  # embed needs an encoder before it looks at the question
OTHER_BODIES = ("recommend", "compare", "index")
PLACES = (*(("POST", f"{ONE}/{name}") for name in (*REQUEST_BODIES, *OTHER_BODIES)), ("POST", "/v1/embeddings"),
          ("PUT", "/v1/aliases/mine"))  # fmt: skip


def posed(name: str, path: str, body: Any, field: str | None, method: str = "POST", **more: Any) -> BadRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return BadRequest(f"{path} {name}", path.encode(), field, method=method, body=text, **({"headers": JSON} | more))


def bad_questions() -> Iterator[BadRequest]:
    for method, path in PLACES:
        for name, text in NO_JSON.items():
            if name not in _OTHERWISE_WRONG:
                yield posed(f"body {name}", path, text, "body", method, statuses=(400,))
        for name, text in {"list": b"[]", "null": b"null", "text": b'"x"', "number": b"0", "true": b"true"}.items():
            yield posed(f"body {name}", path, text, "body", method)
        for kind in (b"", b"text/plain", b"multipart/form-data", b"application/json; charset=utf-16", b"*/*"):
            headers = ((b"Content-Type", kind),)
            yield posed(f"type {kind!r}", path, b"{}", "content-type", method, headers=headers, statuses=(415,))
        headers = (*JSON, (b"Content-Encoding", b"gzip"))
        yield posed("coding", path, b"{}", "content-encoding", method, headers=headers, statuses=(415,))
        yield posed("announces much", path, b"", "body", method, announced=10**12, statuses=(413,))
        yield posed("unknown key", path, {"what": 1}, "what", method)
        yield posed("prototype", path, {"__proto__": {}}, "__proto__", method)
    for what in REQUEST_BODIES:
        for name, ids in _BAD_IDS.items():
            more = {"labels": [1, 2]} if what == "classify" else {}
            yield posed(f"ids {name}", f"{ONE}/{what}", {"ids": ids, **more}, "ids")
    for name, (body, field) in _CLASSIFY.items():
        yield posed(name, f"{ONE}/classify", body, field)
    for name, (what, body, field) in _SCORES.items():
        yield posed(name, f"{ONE}/{what}", body, field)
    absent = "/v1/embeddings/01k9vect0rs00000000000000z"
    for what in (*REQUEST_BODIES, *OTHER_BODIES, "embed"):
        yield posed("of no version", f"{absent}/{what}", {"ids": [1]}, None, statuses=(404,))
    for headers in ((b"Accept", b"text/html"), (b"Accept", b"application/json;q=0")):
        yield BadRequest(f"accept {headers!r}", f"{ONE}/nodes/1".encode(), "accept", (406,), headers=(headers,))


# cut where JSON ends well, or of which only a part is wrong
_OTHERWISE_WRONG = ("digits",)
_BAD_IDS: dict[str, Any] = {
    "text": "1", "object": {}, "number": 1, "null": None, "true": [True], "fraction": [0.5], "whole-fraction": [1.0],
    "list-in-list": [[1]], "object-in-list": [{}], "null-in-list": [1, None], "too-many": [1] * 100_001,
}  # fmt: skip
_SCORES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no-positive": ("recommend", {"positive": []}, "positive"),
    "unknown-positive": ("recommend", {"positive": [99]}, "positive"),
    "cancel-out": ("recommend", {"positive": [1], "negative": [1]}, "negative"),
    "many-positive": ("recommend", {"positive": [1] * 101}, "positive"),
    "k-none": ("recommend", {"positive": [1], "k": 0}, "k"),
    "k-many": ("recommend", {"positive": [1], "k": 501}, "k"),
    "recommend-score": ("recommend", {"positive": [1], "min_score": "high"}, "min_score"),
    "recommend-filter": ("recommend", {"positive": [1], "filter": {}}, "filter"),
    "neighbours-score": ("neighbors", {"ids": [1], "min_score": "high"}, "min_score"),
    "scores-many": ("scores", {"ids": [1] * 1_001}, "ids"),
    "scores-no-others": ("scores", {"ids": [1], "others": []}, "others"),
    "scores-metric": ("scores", {"ids": [1], "metric": "euclid"}, "metric"),
    "compare-nothing": ("compare", {}, "other"),
    "compare-path": ("compare", {"other": "../x"}, "other"),
    "compare-sample": ("compare", {"other": VERSION, "sample": 1}, "sample"),
    "compare-sample-huge": ("compare", {"other": VERSION, "sample": 501}, "sample"),
    "compare-k": ("compare", {"other": VERSION, "k": 101}, "k"),
    "compare-seed": ("compare", {"other": VERSION, "seed": -1}, "seed"),
}
_CLASSIFY: dict[str, tuple[dict[str, Any], str]] = {
    "labels-missing": ({"ids": [1, 2]}, "labels"),
    "labels-fewer": ({"ids": [1, 2], "labels": [1]}, "labels"),
    "labels-bool": ({"ids": [1, 2], "labels": [True, False]}, "labels.0"),
    "labels-mixed": ({"ids": [1, 2], "labels": [1, "b"]}, "labels"),
    "labels-all-alike": ({"ids": [1, 2], "labels": ["a", "a"]}, "labels"),
    "ids-unknown": ({"ids": [1, 99], "labels": ["a", "b"]}, "ids.1"),
    "ids-contradict": ({"ids": [1, 2, 1], "labels": ["a", "b", "b"]}, "ids.2"),
    "predict-unknown": ({"ids": [1, 2], "labels": ["a", "b"], "predict": [3, "x"]}, "predict.1"),
    "predict-none": ({"ids": [1, 2], "labels": ["a", "b"], "predict": []}, "predict"),
    "seed": ({"ids": [1, 2], "labels": ["a", "b"], "seed": -1}, "seed"),
    "seed-huge": ({"ids": [1, 2], "labels": ["a", "b"], "seed": 2**31}, "seed"),
}
