"""Messages: what is read is what was written, to the bit; anything else is refused, and nothing is unpickled."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest

from service.encoder import messages
from service.encoder.messages import MessageError, describe, pack, raise_for_status, unpack
from trainer.errors import Infrastructure, InvalidInput, OutOfMemory


def test_a_message_is_read_as_it_was_written():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.empty((0, 4), np.float64),
        "i": np.array([-(2**62), 7]), "small": np.array([1, -1], np.int8), "n": np.array(5, np.int32),
        "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "big end": np.arange(3, dtype=">i4"),
        "steps": np.arange(10)[::3], "odd": np.array([np.nan, -0.0, np.inf], np.float32),
    }  # fmt: skip
    document, found = unpack(pack({"do": "ü", "n": [1, None]}, arrays))
    assert document == {"do": "ü", "n": [1, None]}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes()
    assert unpack(pack({}, {})) == ({}, {})


def test_a_message_that_ends_early_is_noticed_wherever_it_is_cut():
    whole = pack({"a": 1}, {"x": np.arange(4)})
    for length in range(len(whole)):
        with pytest.raises(MessageError):
            unpack(whole[:length])


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def npy(array: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


NONE = npy(np.array("{}"))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"GET / HTTP/1.1\r\n\r\n", b"{}", npy(np.arange(3)), zipped(), zipped(x=npy(np.arange(3))),
        zipped(document=npy(np.array("{"))), zipped(document=npy(np.array("[]"))), zipped(document=npy(np.arange(3))),
        zipped(document=b"{}"), zipped(document=npy(np.array("[" * 100_000))),
        zipped(document=NONE, x=npy(np.array([print]), allow_pickle=True)), zipped(document=NONE, x=b"\x80\x04N."),
        zipped(document=NONE, x=npy(np.arange(3)).replace(b"(3,)", b"(9,)")),
        zipped(document=NONE, x=npy(np.arange(3)).replace(b"<i8", b"|O8")),
    ],
)  # fmt: skip
def test_what_is_not_a_message_is_refused(data):
    with pytest.raises(MessageError):
        unpack(data)


def test_too_much_is_neither_sent_nor_read(monkeypatch):
    bomb = zipped(document=NONE, x=npy(np.zeros(10_000_000)))
    assert len(bomb) < 100_000
    monkeypatch.setattr(messages, "MAX_ANSWER_BYTES", 100_000)
    with pytest.raises(MessageError, match="too large"):
        unpack(bomb)
    with pytest.raises(InvalidInput, match="Ask for less"):
        pack({}, {"x": np.zeros(100_000)})


@pytest.mark.parametrize("document, array", [({}, np.array([None])), ({"x": float("nan")}, np.zeros(1))])
def test_what_cannot_be_sent_is_said(document, array):
    with pytest.raises(InvalidInput, match="cannot be sent"):
        pack(document, {"x": array})


@pytest.mark.parametrize(
    "error, again",
    [
        (InvalidInput("so"), InvalidInput), (Infrastructure("so"), Infrastructure), (TimeoutError("so"), TimeoutError),
        (OutOfMemory("so"), Infrastructure), (MemoryError("so"), Infrastructure), (KeyError("so"), Infrastructure),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Infrastructure),
    ],
)  # fmt: skip
def test_the_client_raises_what_the_server_raised(error, again):
    status, detail = describe(error)
    with pytest.raises(again, match=r"so|memory ran out|KeyError"):
        raise_for_status(status, json.dumps({"detail": detail}).encode())


@pytest.mark.parametrize(
    "status, content",
    [(500, b"Internal Server Error"), (404, b'{"detail": "Not Found"}'), (422, b'{"detail": [{"loc": []}]}'),
     (422, b"[]"), (503, b""), (503, b"[" * 100_000), (302, b"")],
)  # fmt: skip
def test_a_status_that_no_encoder_gives_is_unexpected(status, content):
    with pytest.raises(MessageError, match=str(status)):
        raise_for_status(status, content)
