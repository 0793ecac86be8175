"""What a sweep tells of its trials: read from the journal as it grows."""

from __future__ import annotations

from typing import Any

import pytest

from service.api.routes import sweeps
from service.api.schemas import Series, Trials
from tests.service.api.server import SMALL, Live
from tests.service.api.test_problems import checked
from trainer.config import parse_spec
from tuner.config import best_spec, parse_sweep
from tuner.journal import Journal

SPACE = {"method.temperature": {"kind": "uniform", "low": 0.2, "high": 0.9}}


@pytest.fixture
def sweep(live: Live) -> dict[str, Any]:
    response = live.http.post("/v1/sweeps", json={"base": SMALL, "space": SPACE, "trials": 5, "concurrency": 1})
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    return document


def test_before_it_has_begun(live: Live, sweep: dict[str, Any]) -> None:
    found = live.http.get(sweep["links"]["trials"]).json()
    Trials.model_validate(found)
    assert (found["trials"], found["best"], found["next"], found["states"]) == ([], None, None, {})
    checked(live.http.get(sweep["links"]["best"]), 404)
    assert live.http.get(sweep["links"]["metrics"]).json()["epochs"] == []
    checked(live.http.get("/v1/sweeps/absent/trials"), 404)
    checked(live.http.get("/v1/sweeps/absent/best"), 404)


def test_trials_and_best(live: Live, sweep: dict[str, Any]) -> None:
    spec = parse_sweep(sweep["spec"])
    journal = Journal.open(live.settings.run_directory(sweep["id"]), spec)
    values = [0.5, 0.7, None, 0.6]
    for number, value in enumerate(values):
        journal.record("trial", number=number, origin="search", changes={"method.temperature": 0.3 + number / 10})
        journal.record(
            "done", number=number, state="failed" if value is None else "finished", value=value,
            values=[] if value is None else [value], epoch=3, seconds=1.0, error=None if value else "killed",
        )  # fmt: skip
    found = live.http.get(sweep["links"]["trials"]).json()
    Trials.model_validate(found)
    assert (found["best"], found["value"], found["states"]) == (1, 0.7, {"finished": 3, "failed": 1})
    assert [row["value"] for row in found["trials"]] == values
    assert found["trials"][1]["method.temperature"] == 0.4
    best = live.http.get(sweep["links"]["best"]).json()
    assert parse_spec(best) == best_spec(spec, {"method.temperature": 0.4})
    assert live.http.post("/v1/jobs", json=best).status_code == 202
    series = live.http.get(sweep["links"]["metrics"]).json()
    Series.model_validate(series)
    assert series["epochs"] == [1, 2, 3]
    assert series["series"]["value"] == [0.5, 0.7, 0.6]
    assert series["series"]["best"] == [0.5, 0.7, 0.7]
    journal.close()


def test_trials_page_by_page(live: Live, sweep: dict[str, Any]) -> None:
    journal = Journal.open(live.settings.run_directory(sweep["id"]), parse_sweep(sweep["spec"]))
    for number in range(5):
        journal.record("trial", number=number, origin="search", changes={"method.temperature": 0.5})
    journal.close()
    seen, after = [], -1
    while after is not None:
        page = live.http.get(sweep["links"]["trials"], params={"after": after, "limit": 2}).json()
        assert len(page["trials"]) <= 2
        seen += [row["number"] for row in page["trials"]]
        after = page["next"]
    assert seen == [0, 1, 2, 3, 4]


def test_cancel_delete_and_events_as_of_a_job(live: Live, sweep: dict[str, Any]) -> None:
    own = sweep["links"]["self"]
    checked(live.http.delete(own), 409)
    assert live.http.post(sweep["links"]["cancel"]).json()["state"] == "cancelled"
    assert "event: state" in live.http.get(sweep["links"]["events"]).text
    assert live.http.delete(own).status_code == 204
    checked(live.http.get(own), 404)


@pytest.mark.parametrize("what", ["trials", "best"])
def test_journals_which_may_be_large_are_read_a_few_at_a_time(
    live: Live, sweep: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    real = sweeps.read_sweep

    def noted(folder: Any) -> Any:
        taken.append(live.state.series._limiter.borrowed_tokens)
        return real(folder)

    monkeypatch.setattr(sweeps, "read_sweep", noted)
    live.http.get(sweep["links"][what])
    assert taken == [1]
