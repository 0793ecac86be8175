"""A route that FastAPI describes but does not run, for what is asked thousands of times a second.

FastAPI's way to an endpoint (middleware, exit stacks, solving dependencies, parsing parameters) takes longer than
reading a job and writing it as JSON. Such an endpoint gets the request and its path parameters as text, and returns a
response. The guard calls it as soon as the request is admitted (`go`); routed in the ordinary way it does the same.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send


class DirectRoute(APIRoute):
    """Takes no dependencies, query, header or body parameters."""

    def __init__(self, path: str, endpoint: Any, **options: Any):
        super().__init__(path, endpoint, **options)
        given = self.dependant
        if given.query_params or given.header_params or given.body_params or given.dependencies:
            raise TypeError(f"{path}: a direct route has path parameters only")
        self.app = self.go

    def takes(self, scope: Scope) -> bool:
        """Whether the request is for this route; then it is ready to `go`."""
        if scope["method"] not in (self.methods or ()):
            return False
        found = self.path_regex.match(scope["path"])
        if found is not None:
            scope["route"], scope["path_params"] = self, found.groupdict()
        return found is not None

    async def go(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or raise what `service.api.problems` makes an answer of."""
        response = await self.endpoint(Request(scope, receive), **scope["path_params"])
        await response(scope, receive, send)
