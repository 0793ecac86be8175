"""A service that trusts this machine, behind a proxy on this machine: then everybody comes from loopback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.service.api.server import SMALL, Live
from tests.service.api.test_limits import bearer
from tests.service.api.test_problems import checked

FORWARDED = [
    {"X-Forwarded-For": "203.0.113.7"},
    {"x-forwarded-for": "127.0.0.1"},  # whoever it names
    {"X-Forwarded-For": ""},
    {"Forwarded": "for=203.0.113.7"},
    {"Via": "1.1 proxy"},
    {"X-Real-IP": "203.0.113.7"},
    {"X-Forwarded-Host": "nml.example.org"},
    {"X-Forwarded-Proto": "https"},
]


@pytest.mark.parametrize("headers", FORWARDED, ids=lambda headers: next(iter(headers)))
def test_a_stranger_behind_a_proxy_is_not_taken_for_this_machine(live: Live, headers: dict[str, str]) -> None:
    assert live.http.get("/v1/jobs").status_code == 200
    for method, path in [("GET", "/v1/jobs"), ("GET", "/docs"), ("GET", "/metrics"), ("DELETE", "/v1/datasets/x")]:
        refused = live.http.request(method, path, headers=headers)
        problem = checked(refused, 401)
        assert next(iter(headers)).lower() in problem.detail
        assert "nml keys create" in problem.detail
        assert "NML_REQUIRE_KEY=false" in problem.detail
        assert refused.headers["www-authenticate"].startswith("Bearer")
    assert checked(live.http.post("/v1/jobs", json=SMALL, headers=headers), 401)
    assert live.http.get("/livez", headers=headers).status_code == 200
    assert live.http.get("/v1/jobs", headers=headers | bearer(live, "read")).status_code == 200


def test_an_operator_who_says_that_no_key_is_needed_means_it(serve: Callable[..., Live]) -> None:
    live = serve(require_key=False)
    for headers in FORWARDED:
        assert live.http.get("/v1/jobs", headers=headers).status_code == 200
