"""Every wrong upload gets a 4xx problem that names the part to blame, and leaves nothing behind."""

from __future__ import annotations

import time

import pytest

from tests.service.api.server import Live
from tests.service.datasets.bad_uploads import BadUpload, bad_uploads

CASES = list(bad_uploads())
QUICK = 12  # of those that need the importer; a process each, so the others are slow
_IMPORTED = [case.name for case in CASES if case.importer]
MARKED = [
    pytest.param(case, marks=[pytest.mark.slow] if case.name in _IMPORTED[QUICK:] else [], id=case.name)
    for case in CASES
]


def test_cases_are_many_and_have_names_of_their_own():
    assert len(CASES) >= 250
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(case.importer for case in CASES) < len(CASES) / 2  # most are refused without starting a process


@pytest.mark.parametrize("case", MARKED)
def test_a_bad_upload_is_refused_with_the_field_to_blame(live: Live, case: BadUpload):
    headers = {} if case.content_type is None else {"Content-Type": case.content_type}
    jobs = live.store.jobs.list(kind="import")[0]
    answer = live.http.post("/v1/datasets", content=case.body, headers=headers, timeout=60)
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (case.status, "application/problem+json"), problem
    assert problem["errors"][0]["field"] == case.field, problem
    assert problem["errors"][0]["message"] in problem["detail"]
    assert str(live.settings.home) not in answer.text
    assert not list(live.settings.graphs.glob("[!.]*"))
    while list(live.settings.uploads.glob("*")):  # removed after the verdict is told; the test's time limit ends this
        time.sleep(0.01)
    started = live.store.jobs.list(kind="import")[0][: len(jobs) + 1]
    assert (started != jobs) == case.importer
