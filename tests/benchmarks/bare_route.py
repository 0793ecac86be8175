"""The least that a FastAPI application can do: routes with fixed answers. What others are compared with."""

from __future__ import annotations

import random

from fastapi import FastAPI


def create_app() -> FastAPI:
    """`uvicorn --factory tests.benchmarks.bare_route:create_app`"""
    app = FastAPI()

    @app.get("/")
    async def bare() -> dict[str, bool]:
        return {"ok": True}

    vector = [random.Random(0).gauss(0, 1) for _ in range(256)]

    @app.get("/vector")
    async def fixed() -> dict[str, list[float]]:
        return {"vector": vector}

    return app
