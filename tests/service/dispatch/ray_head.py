"""A server that answers as the head of a Ray cluster does, and stumbles when told to, as a real one rarely does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "the-token-of-a-head-that-stumbles"


@dataclass
class Head:
    """What the tests see and set."""

    url: str
    submissions: dict[str, dict[str, Any]] = field(default_factory=dict)  # as GET tells of them
    asked: list[tuple[str, str]] = field(default_factory=list)  # method and path, in order
    bodies: list[dict[str, Any]] = field(default_factory=list)
    answer: tuple[int, str] | None = None  # instead of what is true
    refuse: str | None = None  # the reason for which no submission is taken
    hang_up: bool = False  # take the request, act on it, and never answer

    def set(self, name: str, status: str, **more: Any) -> None:
        self.submissions[name] = {"status": status, "message": f"Job is {status}.", "driver_exit_code": None, **more}

    def count(self, method: str, end: str = "") -> int:
        return sum(1 for verb, path in self.asked if verb == method and path.endswith(end))


@contextmanager
def standing_in() -> Iterator[Head]:
    """Answers on loopback, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            head.asked.append((self.command, self.path))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.reply(403, "Forbidden: Invalid authentication token")
            if head.answer is not None:
                return self.reply(*head.answer)
            if self.command == "POST" and self.path == "/api/jobs/":
                return self.submit(json.loads(body))
            name = self.path.split("/")[3]
            if name not in head.submissions:
                return self.reply(404, f"Job {name} does not exist")
            if self.command == "DELETE":
                del head.submissions[name]
                return self.reply(200, json.dumps({"deleted": True}))
            if self.path.endswith("/stop"):
                return self.reply(200, json.dumps({"stopped": True}))
            return self.reply(200, json.dumps(head.submissions[name]))

        do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 - the names that http.server looks for

        def submit(self, document: dict[str, Any]) -> None:
            name = document["submission_id"]
            if name in head.submissions:
                return self.reply(500, f"Traceback …\nValueError: Job with submission_id {name} already exists.")
            if head.refuse is not None:
                return self.reply(400, head.refuse)
            head.bodies.append(document)
            head.set(name, "PENDING")
            return self.reply(200, json.dumps({"submission_id": name}))

        def reply(self, status: int, text: str) -> None:
            if head.hang_up:
                self.close_connection = True
                return
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    head = Head(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield head
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
