"""A route that FastAPI describes but does not run, for what is asked thousands of times a second.

FastAPI's way to an endpoint (exit stacks, solving dependencies, parsing parameters) takes longer than reading a job and
writing it as JSON. Such an endpoint gets the request and its path parameters as text, and returns a response.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import request_response


class DirectRoute(APIRoute):
    """Takes no dependencies, query, header or body parameters."""

    def __init__(self, path: str, endpoint: Any, **options: Any):
        super().__init__(path, endpoint, **options)
        given = self.dependant
        if given.query_params or given.header_params or given.body_params or given.dependencies:
            raise TypeError(f"{path}: a direct route has path parameters only")

        async def handle(request: Request) -> Response:
            answer: Response = await endpoint(request, **request.scope["path_params"])
            return answer

        self.app = request_response(handle)
