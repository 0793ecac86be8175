"""Whoever may read asks for every table as Parquet: what that takes on disk is bounded, and given back."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from service.embeddings import parquet, parquet_room
from service.embeddings.layout import DOWNLOAD
from service.embeddings.parquet_room import WORK, ParquetRoom, expected_bytes
from tests.abuse.attackers import attacked, client, train
from tests.service.api.server import Live
from tests.service.api.test_problems import checked
from tests.service.client.published import Published
from tests.service.embeddings.tables import make_table

ROWS, DIM = 2_000, 32
ONE = 4 * ROWS * DIM  # bytes of the vectors


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with attacked(tmp_path / "home", parquet_bytes=3 * ONE) as server:
        yield server


def made(live: Live) -> dict[str, int]:
    """Parquet files of versions, whole or not, and their sizes."""
    files = [*live.settings.embeddings.glob(f"*/{DOWNLOAD}"), *live.settings.embeddings.glob(f"*/{WORK}")]
    return {path.parent.name: path.stat().st_size for path in files}


def path_of(one: Published) -> str:
    return f"/v1/embeddings/{one.version}/download?format=parquet"


def test_all_tables_as_parquet_together_stay_within_their_bound(live: Live) -> None:
    owner, reader = client(live, "submit"), client(live, "read")
    versions = [train(live, owner, rows=ROWS, dim=DIM, labels=3, seed=seed) for seed in range(6)]
    for one in versions:
        answer = reader.get(path_of(one))
        assert answer.status_code == 200
        assert pq.read_table(io.BytesIO(answer.content)).num_rows == ROWS
        assert ONE < sum(made(live).values()) <= 3 * ONE
    assert set(made(live)) == {one.version for one in versions[-2:]}, "the newest stay"
    assert reader.get(path_of(versions[4])).status_code == 200
    assert reader.get(path_of(versions[0])).status_code == 200
    assert set(made(live)) == {versions[4].version, versions[0].version}, "what was asked for last stays"


def test_asked_for_all_at_once_they_stay_within_it_too(live: Live) -> None:
    owner, reader = client(live, "submit"), client(live, "read")
    versions = [train(live, owner, rows=ROWS, dim=DIM, seed=seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as threads:
        codes = list(threads.map(lambda one: reader.get(path_of(one)).status_code, versions))
    assert set(codes) <= {200, 503}
    assert 200 in codes
    assert sum(made(live).values()) <= 3 * ONE


def test_a_table_beyond_the_bound_is_refused_before_anything_is_written(live: Live) -> None:
    owner, reader = client(live, "submit"), client(live, "read")
    one = train(live, owner, rows=ROWS, dim=4 * DIM)
    problem = checked(reader.get(path_of(one)), 507)
    assert "NML_PARQUET_BYTES" in problem.detail
    assert "npy" in problem.detail
    assert made(live) == {}
    assert reader.get(path_of(one).replace("parquet", "npy")).status_code == 200


def test_what_must_stay_free_stays_free(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, reader = client(live, "submit"), client(live, "read")
    first, second = (train(live, owner, rows=ROWS, dim=DIM, seed=seed) for seed in range(2))

    def usage(place: Path) -> object:
        is_there = any(live.settings.embeddings.glob(f"*/{DOWNLOAD}"))
        return shutil._ntuple_diskusage(10 * ONE, 0, ONE if is_there else 2 * ONE)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert reader.get(path_of(first)).status_code == 200
    assert set(made(live)) == {first.version}
    assert reader.get(path_of(second)).status_code == 200, "the first made room"
    assert set(made(live)) == {second.version}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10 * ONE, 0, 0))
    assert "disk is too full" in checked(reader.get(path_of(first)), 507).detail
    assert set(made(live)) == {second.version}, "nothing makes room for what does not fit all the same"


def test_a_disk_that_fills_up_meanwhile_is_a_clear_error_and_gets_back_what_was_written(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, reader = client(live, "submit"), client(live, "read")
    one = train(live, owner, rows=ROWS, dim=DIM)

    def full(table: object, path: Path) -> None:
        path.write_bytes(b"some of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "_write", full)
        assert "disk is too full" in checked(reader.get(path_of(one)), 507).detail
    assert made(live) == {}
    assert reader.get(path_of(one)).status_code == 200


def test_what_is_being_downloaded_is_not_removed(tmp_path: Path) -> None:
    first, second = (make_table(tmp_path, ROWS, DIM, version=f"01k9vect0rs00000000000000{n}") for n in (1, 2))
    room = ParquetRoom(expected_bytes(first) * 3 // 2, 0)
    descriptor = os.open(parquet.parquet_file(first, room), os.O_RDONLY)
    assert parquet_room.hold(descriptor)
    with pytest.raises(parquet_room.TooManyInUse):
        parquet.parquet_file(second, room)
    os.close(descriptor)
    assert parquet.parquet_file(second, room).exists()
    assert not (first.directory / DOWNLOAD).exists()


def test_what_a_killed_writer_has_left_makes_room(tmp_path: Path) -> None:
    first, second = (make_table(tmp_path, ROWS, DIM, version=f"01k9vect0rs00000000000000{n}") for n in (1, 2))
    left = first.directory / WORK
    left.touch()
    os.truncate(left, 10 * expected_bytes(first))
    assert parquet.parquet_file(second, ParquetRoom(expected_bytes(first) * 3 // 2, 0)).exists()
    assert not left.exists()


@pytest.mark.parametrize("ids", ["int", "str", "shuffled"])
@pytest.mark.parametrize("dim", [1, 64])
def test_no_file_takes_more_than_was_expected(tmp_path: Path, ids: str, dim: int) -> None:
    table = make_table(tmp_path, 5_000, dim, ids, labels=7)
    size = parquet.parquet_file(table, ParquetRoom(1 << 30, 0)).stat().st_size
    assert size <= expected_bytes(table) < 1.2 * size + 5_000 * 32 + (1 << 17)
