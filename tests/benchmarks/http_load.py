"""A generator of HTTP requests that costs a fraction of what any server does: bytes are made once, answers counted.

`python tests/benchmarks/http_load.py URL --seconds 3 --connections 16 [--rate 50]` prints one JSON object. It runs in a
process of its own, so that it shares no interpreter with the server. With a rate it asks evenly at that pace and tells
latencies; without, each connection asks again as soon as it has its answer. `{}` in the URL or in the body becomes
another number below --numbers each time (in a body: --many of them, separated by commas).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from urllib.parse import urlsplit


class Connection(asyncio.Protocol):
    """One keep-alive connection; answers must tell their length."""

    def __init__(self, requests: list[bytes]):
        self._requests, self._asked = requests, 0
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self) -> asyncio.Future[int]:
        """Send the request; the future gives the status of its answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(self._requests[self._asked % len(self._requests)])
        self._asked += 1
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = self._buffer[:end].lower()
        at = head.index(b"content-length:") + 15
        length = int(head[at : head.find(b"\r\n", at) if b"\r\n" in head[at:] else None])
        if len(self._buffer) >= end + 4 + length:
            status = int(self._buffer[9:12])
            self._buffer.clear()
            answer, self._answer = self._answer, None
            answer.set_result(status)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("closed by the server"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


VARIANTS = 499  # of a request with numbers in it, made before the clock starts


def written(url: str, *, accept: str, body: str | None, numbers: int, many: int) -> list[bytes]:
    """The requests, as they go over the wire."""
    parts, draw = urlsplit(url), random.Random(0)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = f"Host: {parts.netloc}\r\nAccept: {accept}\r\n"
    found = []
    for _ in range(VARIANTS if "{}" in url + (body or "") else 1):
        path = target.replace("{}", str(draw.randrange(numbers)))
        if body is None:
            found.append(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
            continue
        text = body.replace("{}", ",".join(str(draw.randrange(numbers)) for _ in range(many)))
        told = f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        found.append(f"POST {path} HTTP/1.1\r\n{head}{told}\r\n{text}".encode())
    return found


async def load(
    url: str, requests: list[bytes], seconds: float, connections: int, rate: float | None
) -> dict[str, object]:
    """Ask for so long; counts by status, answers per second, latencies in milliseconds."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    statuses: dict[int, int] = {}
    latencies: list[float] = []
    start = time.perf_counter()
    end = start + seconds

    async def client(number: int) -> None:
        turned = requests[number * 31 % len(requests) :] + requests[: number * 31 % len(requests)]
        _, connection = await loop.create_connection(lambda: Connection(turned), parts.hostname, parts.port)
        due = start + number * (connections / rate / connections if rate else 0)
        while (now := time.perf_counter()) < end:
            if rate:
                await asyncio.sleep(max(0.0, due - now))
                begin, due = due, due + connections / rate  # from when it should have been sent: waiting counts
            else:
                begin = now
            status = await connection.ask()
            latencies.append(time.perf_counter() - begin)
            statuses[status] = statuses.get(status, 0) + 1
        connection.close()

    await asyncio.gather(*(client(number) for number in range(connections)))
    took = time.perf_counter() - start
    latencies.sort()
    milliseconds = {
        f"p{share}": 1e3 * latencies[min(len(latencies) - 1, len(latencies) * share // 100)] for share in (50, 90, 99)
    }
    return {"statuses": statuses, "per_second": len(latencies) / took, **milliseconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rate", type=float, help="requests per second in all; none: as many as go")
    parser.add_argument("--accept", default="application/json")
    parser.add_argument("--body", help="JSON to POST; none: GET")
    parser.add_argument("--numbers", type=int, default=1)
    parser.add_argument("--many", type=int, default=1)
    options = parser.parse_args()
    requests = written(
        options.url, accept=options.accept, body=options.body, numbers=options.numbers, many=options.many
    )
    print(json.dumps(asyncio.run(load(options.url, requests, options.seconds, options.connections, options.rate))))


if __name__ == "__main__":
    main()
