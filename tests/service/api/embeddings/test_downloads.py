"""Whole tables as files: in parts, conditionally, by their heads alone, and while they are deleted."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.service.api.embeddings.published import fields_of, put_version
from tests.service.api.server import Live


@pytest.mark.parametrize("ids", ["shuffled", "str"])
def test_downloads(live: Live, ids: Any) -> None:
    table = put_version(live.store, live.settings, 500, 8, ids, labels=3)
    version = table.info.version
    path = f"/v1/embeddings/{version}/download"
    whole = live.http.get(path)
    assert whole.content == (table.directory / "vectors.npy").read_bytes()
    assert whole.headers["etag"] == f'"{table.info.files["vectors.npy"]}"'
    assert whole.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert "attachment" in whole.headers["content-disposition"]
    listed = live.http.get(path, params={"format": "ids"})
    names = json.loads(listed.content) if ids == "str" else np.load(io.BytesIO(listed.content)).tolist()
    assert names == table.ids.ids_of(np.arange(500))
    parquet = live.http.get(path, params={"format": "parquet"})
    columns = pq.read_table(io.BytesIO(parquet.content)).to_pydict()
    assert columns["id"] == names
    assert np.array(columns["vector"], np.float32).tobytes() == table.vectors.tobytes()
    for form, content in (("npy", whole.content), ("parquet", parquet.content)):
        options = {"params": {"format": form}}
        tag = live.http.get(path, **options).headers["etag"]
        part = live.http.get(path, headers={"Range": "bytes=100-299", "If-Range": tag}, **options)
        assert (part.status_code, part.content) == (206, content[100:300])
        assert part.headers["content-range"] == f"bytes 100-299/{len(content)}"
        assert part.headers["etag"] == tag
        stale = live.http.get(path, headers={"Range": "bytes=100-299", "If-Range": '"other"'}, **options)
        assert (stale.status_code, stale.content) == (200, content)
        kept = live.http.get(path, headers={"If-None-Match": tag}, **options)
        assert (kept.status_code, kept.headers["nml-version"]) == (304, version)
        beyond = live.http.get(path, headers={"Range": f"bytes={len(content)}-"}, **options)
        assert beyond.status_code == 416
        for wrong in (f"bytes={len(content)}-", "bytes=x"):  # of a file that was another: whatever it asks for
            stale = live.http.get(path, headers={"Range": wrong, "If-Range": '"other"'}, **options)
            assert (stale.status_code, stale.content) == (200, content)
            assert live.http.get(path, headers={"Range": wrong, "If-Range": tag}, **options).status_code in (400, 416)
        head = live.http.head(path, **options)
        assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(content)), b"")
        assert (head.headers["etag"], head.headers["accept-ranges"]) == (tag, "bytes")
    assert live.http.get(path, headers={"Range": "bytes=x"}).status_code == 400
    assert fields_of(live.http.get(path, params={"format": "csv"})) == ["format"]


def test_ranges_are_for_get_and_in_bytes(live: Live) -> None:
    """RFC 9110, 14.2: others are as if they were not there."""
    version = put_version(live.store, live.settings, 50, 8).info.version
    path = f"/v1/embeddings/{version}/download"
    for form in ("npy", "ids", "parquet"):
        whole = live.http.get(path, params={"format": form})
        for text in ("bytes=0-1", "bytes=1000000-", "bytes=x", "items=0-1"):
            head = live.http.head(path, params={"format": form}, headers={"Range": text})
            assert (head.status_code, head.headers["content-length"]) == (200, str(len(whole.content)))
            assert "content-range" not in head.headers
        for text in ("items=0-1", "items=x", "lines = 0-1", "=0-1", "items=0-1, bytes=0-1"):
            answer = live.http.get(path, params={"format": form}, headers={"Range": text})
            assert (answer.status_code, answer.content) == (200, whole.content), text
        for text in ("bytes=0-1", "BYTES=0-1", "bytes =0-1"):
            answer = live.http.get(path, params={"format": form}, headers={"Range": text})
            assert (answer.status_code, answer.content) == (206, whole.content[:2]), text


def test_download_goes_on_while_the_version_is_deleted(live: Live) -> None:
    table = put_version(live.store, live.settings, 40_000, 64)
    content = (table.directory / "vectors.npy").read_bytes()
    with live.http.stream("GET", f"/v1/embeddings/{table.info.version}/download") as answer:
        pieces = answer.iter_bytes(65_536)
        found = [next(pieces)]
        assert live.http.delete(f"/v1/embeddings/{table.info.version}").status_code == 204
        found += pieces
    assert b"".join(found) == content
    assert live.http.get(f"/v1/embeddings/{table.info.version}/download").status_code == 404


def test_heads_are_those_of_the_whole_answer(live: Live) -> None:
    version = put_version(live.store, live.settings, 5, 4).info.version
    for path in ("", "/nodes/1", "/download", "/download?format=parquet"):
        whole, head = (live.http.request(method, f"/v1/embeddings/{version}{path}") for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length", "nml-version", "etag", "cache-control"):
            assert head.headers.get(name) == whole.headers.get(name), (path, name)
    assert live.http.head("/v1/embeddings/absent/nodes/1").status_code == 404
