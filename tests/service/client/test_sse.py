"""Bytes to server-sent events, wherever the network cuts them."""

from __future__ import annotations

import pytest

from service.client._sse import Message, messages

TEXT = (
    ": hello\n\nretry: 1500\n\nid: 1\nevent: state\ndata: {}\n\n"
    'id: 2\r\ndata: {"a": "x\u2028y\x85z"}\r\n\r\n'
    "event:bare\rdata\rdata: two\r\rid: 3\nunknown: field\ndata: cut off"
).encode()
TOLD = [
    Message(None, "message", None, 1.5),
    Message("1", "state", "{}"),
    Message("2", "message", '{"a": "x\u2028y\x85z"}'),
    Message(None, "bare", "\ntwo"),
]


def test_all_line_ends_comments_and_fields_of_the_standard():
    assert list(messages([TEXT])) == TOLD


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
def test_pieces_of_any_size_give_the_same_messages(size):
    assert list(messages(TEXT[at : at + size] for at in range(0, len(TEXT), size))) == TOLD


def test_every_cut_into_two_gives_the_same_messages():
    for at in range(len(TEXT)):
        assert list(messages([TEXT[:at], TEXT[at:]])) == TOLD, at
