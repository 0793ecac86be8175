"""The fast lane: a few routes that are asked thousands of times a second skip FastAPI's own way to an endpoint.

That way (middleware, exit stacks, dependencies, parsing parameters) takes longer than reading a job and writing it as
JSON. This middleware matches the path and calls the endpoint itself. Without it, FastAPI would route the same requests
to the same endpoints with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problems import problem_of, problem_response


def routes_to(app: FastAPI, endpoints: Collection[Callable[..., Any]]) -> list[APIRoute]:
    """The app's routes to these endpoints, each of which takes the request and its path parameters, as text."""
    routes = [context.original_route for context in iter_route_contexts(app.routes)]
    return [route for route in routes if isinstance(route, APIRoute) and route.endpoint in endpoints]


class FastRoutes:
    """ASGI middleware: answers requests for `routes`, passes on all others."""

    def __init__(self, app: ASGIApp, *, routes: Collection[APIRoute]):
        self._app = app
        self._routes = [(route, route.methods or set(), route.path_regex) for route in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for route, methods, path in self._routes:
                if scope["method"] in methods and (found := path.match(scope["path"])) is not None:
                    scope["route"], scope["path_params"] = route, found.groupdict()
                    try:
                        response = await route.endpoint(Request(scope, receive), **scope["path_params"])
                    except Exception as error:
                        problem = problem_of(error)
                        if problem.status == 500:
                            raise
                        response = problem_response(problem, scope)
                    await response(scope, receive, send)
                    return
        await self._app(scope, receive, send)
