"""Frames: what is read is what was written, and what is no frame costs nothing."""

from __future__ import annotations

import io
import json
import struct

import numpy as np
import pytest

from trainer.inference import frames


def sent(head, arrays=None) -> bytes:
    return b"".join(bytes(part) for part in frames.encode(head, arrays))


def test_several_frames_are_read_as_they_were_written():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.empty((0, 4), np.float64),
        "i": np.array([-(2**62), 7]), "small": np.array([1, -1], np.int8), "n": np.array(5, np.int32),
        "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "big end": np.arange(3, dtype=">i4"),
        "steps": np.arange(10)[::3],
    }  # fmt: skip
    stream = io.BytesIO()
    frames.write(stream, {"do": "ü", "n": [1, None]}, arrays)
    frames.write(stream, {})
    stream.seek(0)
    head, found = frames.read(stream)
    assert head == {"do": "ü", "n": [1, None]}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("<")
    assert frames.read(stream) == ({}, {})
    assert frames.read(stream) is None


def test_a_frame_that_ends_early_is_noticed_wherever_it_is_cut():
    whole = sent({"a": 1}, {"x": np.arange(4)})
    for length in range(1, len(whole)):
        with pytest.raises(frames.FrameError):
            frames.read(io.BytesIO(whole[:length]))


def framed(document) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return frames.MAGIC + struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.MAGIC + b"\xff\xff\xff\xff",
        framed(b"\xff"), framed(b"[" * 100_000), framed([]), framed({"head": {}}), framed({"head": 1, "arrays": []}),
        framed({"head": {}, "arrays": [["x", "|O", [1]]]}), framed({"head": {}, "arrays": [["x", "<U9", [1]]]}),
        framed({"head": {}, "arrays": [["x", "<f4", [-1]]]}), framed({"head": {}, "arrays": [["x", "<f4", [1.5]]]}),
        framed({"head": {}, "arrays": [["x", "<f4", [1 << 40, 1 << 40]]]}),
        framed({"head": {}, "arrays": [["x", "<f4", [True]]]}), framed({"head": {}, "arrays": [["x", "<f4", [1] * 9]]}),
        framed({"head": {}, "arrays": [["x", "<f4", [0]], ["x", "<f4", [0]]]}),
        framed({"head": {}, "arrays": [["x", "<f4", [0]]] * 100}),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(frames.FrameError):
        frames.read(io.BytesIO(data))


@pytest.mark.parametrize("array", [np.array([None]), np.array(["a"]), np.array([1j]), np.zeros((1, 1, 1))])
def test_arrays_of_other_kinds_are_not_sent(array):
    with pytest.raises(frames.FrameError):
        frames.encode({}, {"x": array})


def test_too_much_is_not_sent(monkeypatch):
    monkeypatch.setattr(frames, "MOST_ARRAY_BYTES", 100)
    monkeypatch.setattr(frames, "MOST_HEAD_BYTES", 100)
    with pytest.raises(frames.FrameError, match="104 bytes"):
        frames.encode({}, {"x": np.zeros(13)})
    with pytest.raises(frames.FrameError, match="a head of"):
        frames.encode({"x": "y" * 100})
