"""Addresses and tokens of an encoder: what is taken, and that what is refused is not shown."""

from __future__ import annotations

import socket

import pytest

from service.encoder.address import GONE_SECONDS, KEEP_ALIVE, Address, check_token, parse_address
from trainer.errors import InvalidInput


@pytest.mark.parametrize(
    "text, host, port",
    [("encoder:8100", "encoder", 8100), ("0.0.0.0:0", "0.0.0.0", 0), ("[::1]:65535", "::1", 65535),
     (" a.b-c.example:1 ", "a.b-c.example", 1)],
)  # fmt: skip
def test_addresses_are_read_and_written_alike(text, host, port):
    assert parse_address(text) == (host, port)
    assert str(parse_address(text)) == text.strip()


@pytest.mark.parametrize(
    "text",
    ["", "encoder", ":8100", "encoder:", "encoder:http", "encoder:-1", "encoder:65536", "encoder:8٣", "::1:8100",
     "[]:1", "http://encoder:8100", "user@encoder:1", "a b:1", "encoder:1:2", "encoder:8100/"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_address(text)


@pytest.mark.parametrize(
    "token", ["", "only-fifteen-ch", "sixteen ch with blanks", "sixteen-and-mörë-characters", "x" * 16 + "\n"]
)
def test_a_token_that_could_be_guessed_or_garbled_is_refused_and_not_shown(token):
    with pytest.raises(InvalidInput) as refusal:
        check_token(token)
    assert not token or token not in str(refusal.value)
    check_token("sixteen-or-more!")


def test_the_kernel_gives_up_a_silent_peer_within_about_a_minute():
    with socket.socket() as connection:
        for option in KEEP_ALIVE:
            connection.setsockopt(*option)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count, unanswered = (
            connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        )
    assert idle + between * count == GONE_SECONDS == unanswered // 1000
    assert 30 <= GONE_SECONDS <= 90
    assert str(Address("::", 1)) == "[::]:1"
