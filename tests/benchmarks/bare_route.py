"""The least that a FastAPI application can do: one route with a fixed answer. What others are compared with."""

from __future__ import annotations

from fastapi import FastAPI


def create_app() -> FastAPI:
    """`uvicorn --factory tests.benchmarks.bare_route:create_app`"""
    app = FastAPI()

    @app.get("/")
    async def bare() -> dict[str, bool]:
        return {"ok": True}

    return app
