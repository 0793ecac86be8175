"""Rows are found by the user's own ids, of whatever kind; compared with a dictionary."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.embeddings import id_index as module
from service.embeddings.id_index import IdIndex
from service.embeddings.id_index_writer import _LINES, write_id_files
from service.embeddings.layout import VersionInfo
from trainer.errors import InvalidInput

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(
        ["", "0", "-0", "42", "0042", "+42", " 42", "4_2", "٤٢", "42\n", "\x85", "\u2028", "\x00", "a\x00"]
    ),
    st.integers(-(10**25), 10**25).map(str),
)
ANY = st.one_of(TEXT, st.integers(-(10**25), 10**25), st.sampled_from(["\ud800", 10**400, -(10**5000)]))


def open_index(place: Path, ids: list, text: str | None = None) -> IdIndex:
    """Index of `ids` in an empty folder.  text: of ids.json, if not in the form that the trainer gives it."""
    kind = "str" if isinstance(ids[0], str) else "int"
    if kind == "int":
        np.save(place / "ids.npy", np.array(ids, np.int64))
    else:
        lines = ",\n".join(json.dumps(name, ensure_ascii=False) for name in ids)
        (place / "ids.json").write_bytes((text or f"[\n{lines}\n]\n").encode())
    made = write_id_files(place, kind, len(ids))
    return IdIndex.open(place, VersionInfo("v", len(ids), 1, kind, None, False, 0, dict.fromkeys(made, ""), {}))


def check(index: IdIndex, ids: list, asked: list) -> None:
    """Both ways of asking agree with a dictionary of texts: an integer and its decimal text are the same id."""
    known = {str(name): row for row, name in enumerate(ids)}
    asked = [*asked, *ids]
    expected = [known.get(str(node)) if not isinstance(node, int) or abs(node) < 10**400 else None for node in asked]
    assert [index.row_of(node) for node in asked] == expected
    rows = index.rows_of(asked)
    assert rows.dtype == np.int64
    assert rows.tolist() == [-1 if row is None else row for row in expected]
    order = np.random.default_rng(0).permutation(len(ids))
    found = index.ids_of(order)
    assert found == [ids[row] for row in order]
    assert {type(node) for node in found} == {type(ids[0])}


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=30, unique=True), st.lists(ANY, max_size=20))
def test_text_ids_are_found_as_in_a_dictionary(ids, asked):
    with tempfile.TemporaryDirectory() as place:
        check(open_index(Path(place), ids), ids, asked)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.lists(INT64, min_size=1, max_size=30, unique=True),
        st.lists(INT64, min_size=1, max_size=30, unique=True).map(sorted),
        st.integers(1, 30).map(lambda rows: list(range(rows))),
        st.permutations(range(6)),
    ),
    st.lists(ANY, max_size=20),
)
def test_integer_ids_are_found_as_in_a_dictionary(ids, asked):
    beside = [node + step for node in ids[:5] for step in (-1, 1)]
    with tempfile.TemporaryDirectory() as place:
        check(open_index(Path(place), list(ids)), list(ids), asked + beside)


@settings(max_examples=30, deadline=None)
@given(st.lists(TEXT, min_size=2, max_size=20, unique=True), st.lists(TEXT, max_size=10), st.integers(1, 3))
def test_equal_hashes_are_told_apart_by_the_text(ids, asked, kinds):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "digest", lambda text: bytes([len(text) % kinds]) * 8)
        check(open_index(Path(place), ids), ids, asked)


@pytest.mark.parametrize("ids", [[3, 1, 2], [0, 1], [5, 9], ["a", "1"]])
def test_a_truth_value_or_a_fraction_is_no_id(tmp_path, ids):
    index = open_index(tmp_path, ids)
    for nonsense in (True, False, 1.0, None, b"a"):
        assert index.row_of(nonsense) is None
        assert index.rows_of([nonsense, ids[1]]).tolist() == [-1, 1]
    assert index.rows_of([]).tolist() == []
    assert index.ids_of(np.empty(0, np.int64)) == []
    assert index.row_of(np.int64(1)) == index.row_of("1")


@pytest.mark.parametrize("ids", [[7, 3, 7], [0, 1, 1], ["a", "b", "a"], ["", "x", ""]])
def test_an_id_given_twice_is_refused_with_its_rows(tmp_path, ids):
    with pytest.raises(InvalidInput, match=r"rows \d and 2 have the same id"):
        open_index(tmp_path, ids)


def test_an_id_given_twice_is_found_among_equal_hashes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "digest", lambda text: b"12345678")
    with pytest.raises(InvalidInput, match="rows 1 and 4 have the same id 'b'"):
        open_index(tmp_path, ["a", "b", "c", "d", "b"])


@pytest.mark.parametrize("rows", [_LINES, _LINES + 1])
def test_many_ids_are_read_in_parts_without_losing_one(tmp_path, rows):
    ids = [f"p{row}" for row in range(rows)]
    index = open_index(tmp_path, ids)
    assert np.array_equal(index.rows_of(ids), np.arange(rows))
    assert (tmp_path / "ids.utf8").read_text() == "".join(ids)


@pytest.mark.parametrize(
    "text", ['["a", "b",\n"c"]', '[\n"a", "b",\n"c"\n]\n', '[\n "a",\n\n"b",\n"c"]', '["a","b","c"]']
)
def test_a_list_of_another_form_is_read_too(tmp_path, text):
    check(open_index(tmp_path, ["a", "b", "c"], text), ["a", "b", "c"], ["d"])


@pytest.mark.parametrize(
    "text",
    ['[\n"a",\n"b",\n"c"\n', '[\n"a",\n"b"\n]\n', '{"a": 1}', '[\n"a",\n"b",\n3\n]\n', '["a", "b", "c", "d"]', "[\n]\n",
     '[\n"a",\n"b",\n"c",\n]\n', '[\n"a",\n"b",\n"c"\n]\n"d"', '["a", "b", "\\ud800"]'],
)  # fmt: skip
def test_a_damaged_list_is_refused(tmp_path, text):
    with pytest.raises(InvalidInput, match=r"ids\.json"):
        open_index(tmp_path, ["a", "b", "c"], text)


def test_a_list_that_changes_its_form_half_way_is_refused(tmp_path):
    lines = ",\n".join(f'"{row}"' for row in range(_LINES + 5))
    with pytest.raises(InvalidInput, match=r"ids\.json: not a text to a line|ids\.json: not an id to a line"):
        open_index(tmp_path, ["a"] * (_LINES + 6), f'[\n{lines}, "x"\n]\n')


def test_ids_of_another_type_or_number_are_refused(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(3, dtype=np.int32))
    with pytest.raises(InvalidInput, match=r"ids\.npy: holds int32 \[3\], where int64 \[3\]"):
        write_id_files(tmp_path, "int", 3)
    np.save(tmp_path / "ids.npy", np.arange(4))
    with pytest.raises(InvalidInput, match=r"int64 \[4\]"):
        write_id_files(tmp_path, "int", 3)


def test_an_index_cut_short_does_not_open(tmp_path):
    index = open_index(tmp_path, ["a", "bc"])
    assert index.row_of("bc") == 1
    (tmp_path / "ids.utf8").write_bytes(b"ab")
    with pytest.raises(ValueError, match=r"ids\.utf8"):
        IdIndex.open(tmp_path, VersionInfo("v", 2, 1, "str", None, False, 0, {}, {}))
