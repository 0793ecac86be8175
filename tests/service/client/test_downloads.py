"""Tables as files: the bytes of the export, however often the connection breaks or the process ends."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from service.api.embeddings import downloads
from service.client import ApiError, Client, Unreachable, _downloads
from tests.service.api.server import Live
from tests.service.client.proxy import Proxy, proxying
from tests.service.client.published import Published, published
from trainer.errors import Infrastructure, InvalidInput

ROWS, DIM = 5_000, 64  # 1.28 MB


@pytest.fixture
def made(live: Live) -> Published:
    return published(live, ROWS, DIM)


@pytest.fixture
def proxy(live: Live) -> Iterator[Proxy]:
    with proxying(live.url) as found:
        yield found


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def export(live: Live, version: str) -> Path:
    return live.settings.run_directory(version) / "embeddings"


def test_each_format_holds_the_exported_table(live: Live, client: Client, tmp_path: Path):
    place = tmp_path / "files"
    place.mkdir()
    for kind in ("int", "str"):
        made = published(live, 200, 8, kind, labels=3)
        assert client.vectors.download("latest", place / "v.npy") == client.vectors.get(made.version)
        assert (place / "v.npy").read_bytes() == (export(live, made.version) / "vectors.npy").read_bytes()
        client.vectors.download("latest", place / "ids", "ids")
        ids = np.load(place / "ids").tolist() if kind == "int" else json.loads((place / "ids").read_text("utf-8"))
        assert ids == made.ids
        client.vectors.download("latest", place / "t.parquet", "parquet")
        table = pyarrow.parquet.read_table(place / "t.parquet")
        assert table["id"].to_pylist() == made.ids
        assert np.array(table["vector"].to_pylist(), np.float32).tobytes() == made.vectors.tobytes()
    assert names(place) == ["ids", "t.parquet", "v.npy"]


def test_a_cut_download_goes_on_and_a_later_call_takes_up_the_part(
    live: Live, made: Published, proxy: Proxy, tmp_path: Path
):
    place = tmp_path / "files"
    place.mkdir()
    target = place / "v.npy"
    proxy.budgets = [500_000]
    with Client(proxy.url, key="", patience=0) as hasty, pytest.raises(Unreachable):
        hasty.vectors.download("latest", target)
    part = place / "v.npy.part"
    have = part.stat().st_size
    assert 0 < have < 500_000
    assert names(place) == ["v.npy.part", "v.npy.part.etag"]
    whole = (export(live, made.version) / "vectors.npy").read_bytes()
    assert part.read_bytes() == whole[:have]
    told: list[tuple[int, int]] = []
    proxy.budgets = [300_000, 300_000]
    with Client(proxy.url, key="", patience=120) as client:
        client.vectors.download("latest", target, progress=lambda *at: told.append(at))
    assert told[0][0] >= have  # nothing of what was there came again
    assert sorted(told) == told
    assert told[-1] == (len(whole), len(whole))
    assert target.read_bytes() == whole
    assert names(place) == ["v.npy"]


@pytest.mark.timeout(300)
def test_a_connection_that_falls_silent_is_given_up_and_the_rest_comes_by_another(
    live: Live, made: Published, proxy: Proxy, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(_downloads, "BODY_SECONDS", 0.5)
    proxy.budgets, proxy.silent = [500_000, 300_000], True
    told: list[int] = []
    with Client(proxy.url, key="", patience=120) as client:
        client.vectors.download("latest", tmp_path / "v.npy", progress=lambda done, _: told.append(done))
    assert (tmp_path / "v.npy").read_bytes() == (export(live, made.version) / "vectors.npy").read_bytes()
    assert sorted(told) == told  # nothing came again
    assert proxy.budgets == []


def test_a_file_that_is_still_being_written_is_waited_for(made: Published, live: Live, tmp_path: Path, monkeypatch):
    begun: list[float] = []

    def slow(*arguments):
        begun.append(time.monotonic())
        time.sleep(3 if len(begun) == 1 else 0)
        monkeypatch.setattr(_downloads, "BODY_SECONDS", 120.0)  # of the answer itself, which has yet to come
        return parquet_file(*arguments)

    parquet_file = downloads.parquet_file
    monkeypatch.setattr(downloads, "parquet_file", slow)
    monkeypatch.setattr(_downloads, "BODY_SECONDS", 1.0)
    with Client(live.url, key="", patience=0) as hasty:
        hasty.vectors.download("latest", tmp_path / "t.parquet", "parquet")
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet")["id"].to_pylist() == made.ids


@pytest.mark.parametrize("form", ["npy", "ids"])
def test_a_file_that_differs_from_its_checksum_is_refused_and_not_gone_on_with(
    live: Live, made: Published, client: Client, tmp_path: Path, form
):
    place = tmp_path / "files"
    place.mkdir()
    path = f"/v1/embeddings/{made.version}/download"
    answer = live.http.get(path, params={"format": form})
    (place / "v.part").write_bytes(b"?" + answer.content[1:2_000])
    (place / "v.part.etag").write_text(f"{live.url}{path}?format={form}\n{answer.headers['etag']}")
    with pytest.raises(Infrastructure, match="checksum"):
        client.vectors.download(made.version, place / "v", form)
    assert names(place) == []
    client.vectors.download(made.version, place / "v", form)
    assert (place / "v").read_bytes() == answer.content


def test_a_part_of_another_version_is_not_gone_on_with(live: Live, made: Published, proxy: Proxy, tmp_path: Path):
    target = tmp_path / "v.npy"
    proxy.budgets = [500_000]
    with Client(proxy.url, key="", patience=0) as hasty, pytest.raises(Unreachable):
        hasty.vectors.download("latest", target)
    newer = published(live, ROWS, DIM, seed=1)
    with Client(proxy.url, key="") as client:
        assert client.vectors.download("latest", target).version == newer.version
    assert np.array_equal(np.load(target), newer.vectors)
    assert not np.array_equal(made.vectors, newer.vectors)


def test_a_part_that_nobody_vouches_for_is_begun_anew(live: Live, made: Published, client: Client, tmp_path: Path):
    target = tmp_path / "v.npy"
    source = f"{live.url}/v1/embeddings/{made.version}/download?format=npy"
    for note in (None, "", "nonsense", f"{source}\n", f'{source}\n"another"', "\x00\n\x00", f"{source}\nä"):
        (tmp_path / "v.npy.part").write_bytes(b"x" * 3_000_000)
        if note is not None:
            (tmp_path / "v.npy.part.etag").write_text(note, encoding="utf-8")
        client.vectors.download("latest", target)
        assert np.array_equal(np.load(target), made.vectors), note
        target.unlink()


@pytest.mark.parametrize("missing", [0, 1])
def test_a_process_killed_before_the_last_step_costs_nothing(
    live: Live, made: Published, proxy: Proxy, tmp_path: Path, missing: int
):
    target = tmp_path / "v.npy"
    whole = (export(live, made.version) / "vectors.npy").read_bytes()
    answer = live.http.get(f"/v1/embeddings/{made.version}/download", params={"format": "npy"})
    assert answer.content == whole
    source = f"{proxy.url}/v1/embeddings/{made.version}/download?format=npy"
    (tmp_path / "v.npy.part").write_bytes(whole[: len(whole) - missing])
    (tmp_path / "v.npy.part.etag").write_text(f"{source}\n{answer.headers['etag']}")
    with Client(proxy.url, key="") as client:
        told: list[int] = []
        client.vectors.download(made.version, target, progress=lambda done, _: told.append(done))
    assert target.read_bytes() == whole
    assert told == [len(whole)]  # in one piece: the last bytes alone came


def test_two_at_once_do_not_write_one_file(made: Published, client: Client, tmp_path: Path):
    with (tmp_path / "v.npy.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InvalidInput, match="another process"):
            client.vectors.download("latest", tmp_path / "v.npy")
    client.vectors.download("latest", tmp_path / "v.npy")
    assert np.array_equal(np.load(tmp_path / "v.npy"), made.vectors)


def test_impossible_places_and_formats_leave_nothing_behind(made: Published, client: Client, tmp_path: Path):
    place = tmp_path / "files"
    place.mkdir()
    for path in (place, place / "missing" / "v.npy"):
        with pytest.raises(InvalidInput, match=r"give the name of a file|Choose a folder"):
            client.vectors.download("latest", path)
    with pytest.raises(ApiError, match="format"):
        client.vectors.download("latest", place / "v", "csv")  # type: ignore[arg-type]
    with pytest.raises(ApiError):
        client.vectors.download("nothing", place / "v")
    assert names(place) == []
