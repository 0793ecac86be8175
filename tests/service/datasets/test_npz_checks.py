"""The quick look at an npz: takes whatever numpy writes for a graph, and counts what it unpacks to."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.datasets.npz_checks import FREE_BYTES, MAX_MEMBERS, check_npz
from service.datasets.refusal import Refused
from tests.service.datasets.forms import npy, zipped

ANY = (
    hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.floating_dtypes(sizes=(16, 32, 64)) | hnp.unicode_string_dtypes()
)
ARRAYS = hnp.arrays(ANY, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5), fill=st.nothing())


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("npz") / "graph.npz"


@settings(max_examples=150, deadline=None)
@given(arrays=st.dictionaries(st.sampled_from("abcdef"), ARRAYS, min_size=1), compressed=st.booleans())
def test_whatever_numpy_writes_of_plain_arrays_is_taken(path: Path, arrays, compressed):
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    unpacked = check_npz(path, most_bytes=10**9)
    with zipfile.ZipFile(path) as archive:
        assert unpacked == sum(len(archive.read(info)) for info in archive.infolist())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_gets_through_as_anything_but_a_refusal(path: Path, data):
    file = io.BytesIO()
    np.savez_compressed(file, x=np.arange(40.0).reshape(8, 5), edge_index=np.ones((2, 9), np.int64))
    content = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path.write_bytes(content)
    with contextlib.suppress(Refused):  # anything else would be an answer of 500
        check_npz(path, most_bytes=10**9)


def test_version_2_and_3_headers_fortran_order_and_large_members_are_taken(path: Path):
    header = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }"
    members = [(f"v{version}.npy", npy(header, bytes(48), version=version)) for version in (1, 2, 3)]
    path.write_bytes(zipped(members))
    assert check_npz(path, most_bytes=1_000) == sum(len(content) for _, content in members)
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w", force_zip64=True) as file:
        file.write(members[0][1])  # sizes in the extra field, as numpy writes them
    assert check_npz(path, most_bytes=1_000) == len(members[0][1])


def test_as_many_members_as_allowed_and_no_more(path: Path):
    member = npy("{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }", b"\1")
    path.write_bytes(zipped([(f"{number}.npy", member) for number in range(MAX_MEMBERS)]))
    check_npz(path, most_bytes=10**6)
    path.write_bytes(zipped([(f"{number}.npy", member) for number in range(MAX_MEMBERS + 1)]))
    with pytest.raises(Refused, match=f"more than {MAX_MEMBERS}"):
        check_npz(path, most_bytes=10**6)


def test_zeros_may_shrink_a_lot_while_they_are_few(path: Path):
    np.savez_compressed(path, x=np.zeros((2_000, 5_000), np.float32))  # a thousandth of its size
    assert FREE_BYTES > check_npz(path, most_bytes=10**9) > 500 * path.stat().st_size
    with pytest.raises(Refused, match="more than the 1,000,000 allowed"):
        check_npz(path, most_bytes=10**6)
