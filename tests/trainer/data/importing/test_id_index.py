"""Finding rows by id: against a dictionary, with hashes that collide, and duplicates named by their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from trainer.data.importing.id_index import IntegerIndex, TextIndex, hash_texts
from trainer.data.importing.ids import IdWriter, Texts


def texts_of(path: Path, values: list[str]) -> Texts:
    writer = IdWriter(path, path)
    for start in range(0, len(values), 7):
        writer.add(pa.chunked_array([values[start : start + 7]], type=pa.string()))
    texts = writer.finish()
    assert texts is not None
    return texts


@pytest.mark.parametrize("bits", [0, 1, 4, 53])
def test_texts_are_found_whatever_collides(tmp_path: Path, bits: int):
    rng = np.random.default_rng(bits)
    known = [f"{'x' * int(k % 23)}{k}" for k in rng.permutation(300)]
    index = TextIndex(texts_of(tmp_path, known), bits=bits)
    wanted = [*rng.choice(known, 200).tolist(), "", "stranger", known[0] + " ", known[1][:-1], "ü"]
    row_of = {text: row for row, text in enumerate(known)}
    assert index.find(pa.chunked_array([wanted])).tolist() == [row_of.get(text, -1) for text in wanted]
    assert index.duplicate() is None


@pytest.mark.parametrize("bits", [0, 3, 53])
def test_the_first_repeated_text_is_named_with_its_first_row(tmp_path: Path, bits: int):
    known = [f"n{k}" for k in range(80)]
    known[60], known[41], known[77] = "n3", "n40", "n3"  # 41 repeats 40, 60 and 77 repeat 3
    duplicate = TextIndex(texts_of(tmp_path, known), bits=bits).duplicate()
    assert duplicate == (41, 40)
    known[41] = "other"
    (tmp_path / "again").mkdir()
    assert TextIndex(texts_of(tmp_path / "again", known), bits=bits).duplicate() == (60, 3)


@pytest.mark.parametrize(
    "ids",
    [np.arange(10, 60), np.arange(0, 300, 7), np.array([5, -3, 2**62, 0, -(2**62)]), np.array([-(2**63), 2**63 - 1])],
    ids=["counting", "ascending", "disorder", "extremes"],
)
def test_integers_are_found_as_in_a_dictionary(ids):
    row_of = {value: row for row, value in enumerate(ids.tolist())}
    wanted = [*ids.tolist(), 0, 9, 60, 61, -1, 2**63 - 1, -(2**63)]
    index = IntegerIndex(ids)
    expected = [row_of.get(value, -1) for value in wanted]
    assert index.find(pa.chunked_array([pa.array(wanted, pa.int64())])).tolist() == expected
    assert index.find(pa.chunked_array([[str(value) for value in wanted]])).tolist() == expected
    assert index.duplicate() is None


def test_the_first_repeated_integer_is_named_with_its_first_row():
    assert IntegerIndex(np.array([4, 9, 2, 7, 9, 4, 9])).duplicate() == (4, 1)


def test_hash_depends_on_the_text_alone_and_spreads():
    texts = [f"node-{k}" for k in range(20_000)] + ["", "a", "a\0", "a\0\0", "aaaaaaaa", "aaaaaaaaa", "ü" * 40]
    whole = hash_texts(pa.array(texts))
    assert len(set(whole.tolist())) == len(texts)
    sliced = hash_texts(pa.array(["before", *texts], pa.large_string()).slice(1))
    assert sliced.tolist() == whole.tolist()
    low_bits = np.bincount((whole & np.uint64(63)).astype(int), minlength=64)
    assert low_bits.min() > 200  # 312 on average
