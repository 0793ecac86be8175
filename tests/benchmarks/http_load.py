"""A generator of HTTP requests that costs a fraction of what any server does: bytes are made once, answers counted.

`python tests/benchmarks/http_load.py URL --seconds 3 --connections 16 [--rate 50]` prints one JSON object. It runs in a
process of its own, so that it shares no interpreter with the server. With a rate it asks evenly at that pace and tells
latencies; without, each connection asks again as soon as it has its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from urllib.parse import urlsplit


class Connection(asyncio.Protocol):
    """One keep-alive connection; answers must tell their length."""

    def __init__(self, request: bytes):
        self._request, self._buffer = request, b""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self) -> asyncio.Future[int]:
        """Send the request; the future gives the status of its answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
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
            self._buffer, answer, self._answer = b"", self._answer, None
            answer.set_result(status)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("closed by the server"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def load(url: str, seconds: float, connections: int, rate: float | None) -> dict[str, object]:
    """Ask for so long; counts by status, answers per second, latencies in milliseconds."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    statuses: dict[int, int] = {}
    latencies: list[float] = []
    start = time.perf_counter()
    end = start + seconds

    async def client(number: int) -> None:
        _, connection = await loop.create_connection(lambda: Connection(request), parts.hostname, parts.port)
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
    options = parser.parse_args()
    print(json.dumps(asyncio.run(load(options.url, options.seconds, options.connections, options.rate))))


if __name__ == "__main__":
    main()
