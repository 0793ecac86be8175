"""The servers of tests/service/api, for attackers."""

from __future__ import annotations

from tests.service.api.conftest import live, serve

__all__ = ["live", "serve"]
