"""What becomes a job, and what is refused with the field to change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from service.api.examples import JOBS, SWEEPS
from service.api.schemas import EstimateDocument, JobDocument, SweepDocument
from tests.service.api.server import SMALL, Live
from tests.service.api.test_problems import checked
from tests.service.datasets.test_resolve import add
from trainer.config import TrainSpec, parse_spec, spec_hash
from trainer.methods import BY_NAME
from trainer.planning.plan import make_plan
from trainer.planning.shape import shape_of_data
from trainer.presets import preset_spec
from tuner.config import parse_sweep, sweep_hash, with_open_space


def post(live: Live, document: Any, path: str = "/v1/jobs", **query: Any) -> Any:
    """A body as it stands if it is bytes, else as JSON."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return live.http.post(path, content=content, headers={"Content-Type": "application/json"}, params=query)


def test_accepted_job(live: Live) -> None:
    before = time.time()
    response = post(live, SMALL, name="first", priority=7, deadline_minutes=1.5)
    assert response.status_code == 202
    document = response.json()
    JobDocument.model_validate(document)
    assert response.headers["location"] == document["links"]["self"] == f"/v1/jobs/{document['id']}"
    assert "idempotent-replayed" not in response.headers
    spec = parse_spec({**SMALL, "preset": "nml", "run": {"name": "first"}})
    assert TrainSpec.model_validate(document["spec"]) == spec
    assert document["spec_hash"] == spec_hash(spec)
    assert (document["state"], document["kind"], document["priority"]) == ("queued", "train", 7)
    assert (document["name"], document["dataset"], document["owner"]) == ("first", "synthetic", None)
    plan = make_plan(spec, shape_of_data(spec.data, home=live.settings.home), live.settings.memory_bytes)
    assert document["memory_bytes"] == plan.memory.total
    job = live.store.jobs.get(document["id"])
    assert job is not None
    assert job.deadline is not None
    assert before + 90 <= job.deadline <= time.time() + 90
    assert live.http.get(response.headers["location"]).json() == document


def test_what_stands_beside_the_spec_is_as_in_the_query_and_no_part_of_it(live: Live) -> None:
    options = {"name": "first", "priority": 7, "deadline_minutes": 1.5, "metadata": {"team": "graphs", "é": "ü"}}
    refused = checked(post(live, SMALL | options), 422)
    assert [error.field.split(".")[0] for error in refused.errors or ()] == ["metadata"]
    options["metadata"] = {"team": "graphs", "note": "ü=%"}
    for path, spec in (("/v1/jobs", SMALL), ("/v1/sweeps", {"base": SMALL, "concurrency": 1})):
        beside = post(live, spec | options, path).json()
        asked = {name: value for name, value in options.items() if name != "metadata"}
        in_query = post(live, spec, path, **asked).json()
        for name in ("name", "priority", "spec", "spec_hash", "memory_bytes"):
            assert beside[name] == in_query[name]
        assert (beside["metadata"], in_query["metadata"]) == (options["metadata"], {})
        assert beside["deadline"] is not None
        assert post(live, spec | {"priority": 1}, path, name="other").json()["name"] == "other"


def test_nothing_is_refused_with_the_smallest_spec_that_works(live: Live) -> None:
    for document in ({}, {"name": "first"}):
        refused = live.http.post("/v1/jobs", json=document)
        assert '{"data": {"name": "digits"}}' in checked(refused, 422).detail
        assert post(live, refused.json()["example"]).status_code == 202


def test_estimate_is_what_the_job_then_needs(live: Live) -> None:
    asked = SMALL | {"name": "first"}
    found = live.http.post("/v1/estimates", json=asked)
    assert found.status_code == 200, found.text
    estimate = EstimateDocument.model_validate(found.json())
    assert live.http.get("/v1/jobs").json()["items"] == []
    job = post(live, asked).json()
    assert estimate.memory.total == job["memory_bytes"] <= estimate.limit
    assert (estimate.data, estimate.workers, estimate.shape.nodes) == ("synthetic", 1, 60)
    assert estimate.memory.parts.keys() == estimate.memory.held.keys()
    assert (estimate.sampling.negatives, estimate.sampling.batch_size) == ("graph", None)
    huge = SMALL | {"data": {"name": "synthetic", "synthetic": {"nodes": 10**8, "features": 10_000}}}
    told, submitted = (checked(live.http.post(path, json=huge), 422) for path in ("/v1/estimates", "/v1/jobs"))
    assert (told.type, told.detail) == (submitted.type, submitted.detail) == ("urn:nml:problem:memory", told.detail)


def test_accepted_sweep(live: Live) -> None:
    response = post(live, {"base": SMALL, "trials": 3, "concurrency": 2}, "/v1/sweeps", name="search")
    assert response.status_code == 202, response.text
    document = response.json()
    SweepDocument.model_validate(document)
    base = {**SMALL, "preset": "nml", "run": {"name": "search"}}
    spec = parse_sweep(with_open_space({"base": base, "trials": 3, "concurrency": 2}, SMALL))
    assert parse_sweep(document["spec"]) == spec
    assert "method.temperature" in document["spec"]["space"]
    assert "optimiser.epochs" not in document["spec"]["space"]  # SMALL gives it a value
    assert document["spec_hash"] == sweep_hash(spec)
    assert response.headers["location"] == f"/v1/sweeps/{document['id']}"
    alone = post(live, {"base": SMALL, "trials": 3, "concurrency": 1}, "/v1/sweeps").json()
    assert document["memory_bytes"] == 2 * alone["memory_bytes"]


@pytest.mark.parametrize("name", JOBS)
def test_examples_of_jobs_work(shared: Live, name: str) -> None:
    response = post(shared, JOBS[name]["value"])
    assert response.status_code == 202, response.text
    JobDocument.model_validate(response.json())


@pytest.mark.parametrize("name", SWEEPS)
def test_examples_of_sweeps_work(shared: Live, name: str) -> None:
    response = post(shared, SWEEPS[name]["value"], "/v1/sweeps")
    assert response.status_code == 202, response.text
    SweepDocument.model_validate(response.json())


def test_what_is_left_out_is_the_presets(shared: Live) -> None:
    cora = {"data": {"name": "cora"}}
    got = {
        "absent": post(shared, cora).json()["spec"],
        "named": post(shared, cora | {"preset": "nml-official"}).json()["spec"],
        "none": post(shared, cora | {"preset": None}).json()["spec"],
        "partly": post(shared, cora | {"preset": "nml-official", "method": {"temperature": 0.3}}).json()["spec"],
    }
    assert got["absent"] == preset_spec("nml", "cora").model_dump(mode="json")
    assert got["named"] == preset_spec("nml-official", "cora").model_dump(mode="json")
    assert got["none"] == parse_spec(cora).model_dump(mode="json")
    expected = preset_spec("nml-official", "cora").model_dump(mode="json")
    expected["method"]["temperature"] = 0.3
    assert got["partly"] == expected


def test_name_of_a_method_is_enough(shared: Live) -> None:
    cora = {"data": {"name": "cora"}}
    by_name = post(shared, cora | {"method": "untrained"}).json()["spec"]
    assert by_name == preset_spec("untrained", "cora").model_dump(mode="json")
    assert by_name == post(shared, cora | {"method": {"name": "untrained"}}).json()["spec"]
    warm = post(shared, cora | {"method": {"name": "nml", "temperature": 0.4}}).json()["spec"]
    assert (warm["method"]["temperature"], warm["method"]["inner_steps"], warm["preset"]) == (0.4, 2, "nml")


def test_wrong_method_is_told_which_there_are_and_a_wrong_setting_what_it_has(shared: Live) -> None:
    problem = checked(post(shared, {"method": "unheard-of"}), 422)
    assert all(name in problem.detail for name in BY_NAME)
    problem = checked(post(shared, {"method": {"name": "nml", "heat": 1}}), 422)
    assert problem.detail.startswith("method.heat: ")
    assert "temperature" in problem.detail
    of_sweep = checked(post(shared, {"base": {"method": {"heat": 1}}}, "/v1/sweeps"), 422)
    assert of_sweep.detail.startswith("base.method.heat: ")


def test_whole_document_stays_as_it_is(shared: Live) -> None:
    whole = post(shared, SMALL).json()["spec"]
    assert post(shared, whole).json()["spec"] == whole
    sweep = post(shared, {"base": SMALL, "concurrency": 1}, "/v1/sweeps").json()["spec"]
    assert post(shared, sweep, "/v1/sweeps").json()["spec"] == sweep


BAD_JOBS: list[tuple[Any, str]] = [
    ({"method": {"temperature": 0}}, "method.temperature"),
    ({"method": {"temperature": "warm"}}, "method.temperature"),
    ({"method": {"temperature": None}}, "method.temperature"),
    ({"method": {"temperature": [0.5]}}, "method.temperature"),
    ({"method": {"temperature": 10**400}}, "method.temperature"),
    ({"method": {"reg": {"coefficient": 100, "scale": "n_minus_1"}}}, "method.reg"),
    ({"objective": 5}, "objective"),
    ({"objective": None}, "objective"),
    ({"optimiser": {"epochs": 1.5}}, "optimiser.epochs"),
    ({"optimiser": {"epochs": 10**30}}, "optimiser.epochs"),
    ({"optimiser": {"epochs": "9" * 5_000}}, "optimiser.epochs"),
    ({"augment": {"edge_drop": [0.1]}}, "augment.edge_drop.1"),
    ({"augment": {"edge_drop": [0.1, 1.0]}}, "augment.edge_drop.1"),
    ({"augment": {"edge_drop": {"0": 0.1}}}, "augment.edge_drop"),
    ({"sampling": {"num_neighbors": [5]}}, "sampling.num_neighbors"),
    ({"sampling": {"num_neighbors": [0, 5]}}, "sampling"),
    ({"sampling": {"tile": True, "backend": "os.system"}}, "sampling.backend"),
    ({"method": {"metric": {"kind": "__import__('os')"}}}, "method.metric.kind"),
    ({"encoder": {"hidden": -1}}, "encoder.hidden"),
    ({"run": {"seed": 2**63}}, "run.seed"),
    ({"run": {"name": "a\0b"}}, "run.name"),
    ({"run": {"name": "x" * 201}}, "run.name"),
    ({"run": {"directory": "/etc"}}, "run.directory"),
    ({"data": {"name": "mnist"}}, "data.name"),
    ({"data": {"name": ["digits"]}}, "data.name"),
    ({"data": "digits"}, "data"),
    ({"data": {"name": "files", "files": {"npz": "/etc/passwd"}}}, "data.name"),
    ({"data": {"name": "files", "files": {"nodes": "http://x/n.csv", "edges": "e.csv"}}}, "data.name"),
    ({"data": {"name": "digits", "files": {"npz": "/etc/passwd"}}}, "data.files"),
    ({"data": {"name": "imported", "imported": "../../etc"}}, "data.imported"),
    ({"data": {"name": "imported", "imported": "never-uploaded"}}, "data.imported"),
    ({"data": {"name": "synthetic", "synthetic": {"nodes": 5, "classes": 9}}}, "data.synthetic"),
    ({"preset": "best"}, "preset"),
    ({"preset": 7}, "preset"),
    ({"preset": "nml-official"}, "preset"),  # none for digits
    ({"method": "other"}, "method"),
    ({"method": {"name": ["nml"]}}, "method"),
    ({"method": None}, "method"),
    ({"method": {"name": "untrained", "temperature": 0.5}}, "method.temperature"),
    ({"method": "untrained", "preset": "nml"}, "preset"),
    ({"metric": {"hidden": 8}}, "metric"),
    ({"unknown": 1}, "unknown"),
    ({"": {}}, '""'),
    ({"method.temperature": 0.5}, "method.temperature"),
    (b'{"method": {"temperature": NaN}}', "method.temperature"),
    (b'{"method": {"temperature": -Infinity}}', "method.temperature"),
    (b'{"optimiser": {"lr": 1e999}}', "optimiser.lr"),
    (b'{"a": [[1, {"b": NaN}]]}', "a.0.1.b"),
    ({"space": list(range(100_001))}, "body"),
    (b"[]", "body"),
    (b"null", "body"),
    (b'"spec"', "body"),
    (b"0", "body"),
]


@pytest.mark.parametrize("document, field", BAD_JOBS)
def test_field_that_is_wrong_is_named(shared: Live, document: Any, field: str) -> None:
    problem = checked(post(shared, document), 422)
    assert problem.errors is not None
    assert field in [error.field for error in problem.errors]
    assert "etc/passwd" not in problem.model_dump_json()
    assert "os.system" not in problem.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"{", b"{}}", b'{"a": 01}', b"{'a': 1}", b'{"a": 1,}', b"\xff\xfe", b'{"run": {"name": "\xff"}}',
        b'{"run": {"name": "\\ud800"}}', b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b"[" * 100_000, b"nan", b"x" * 1_000,
        b'{"optimiser": {"epochs": ' + b"9" * 10_000 + b"}}", b"\xef\xbb\xbf{}", b'{"a": "\n"}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/sweeps"])
def test_body_that_is_no_json(shared: Live, path: str, text: bytes) -> None:
    problem = checked(post(shared, text, path), 400)
    assert problem.errors is not None
    assert problem.errors[0].field == "body"


def test_of_a_key_that_is_there_twice_the_last_holds(shared: Live) -> None:
    text = b'{"run": {"seed": 1}, "data": {"name": "digits"}, "run": {"seed": 2}}'
    assert post(shared, text).json()["spec"]["run"]["seed"] == 2


BAD_SWEEPS: list[tuple[Any, str]] = [
    ({}, "base"),
    ({"base": []}, "base"),
    ({"base": {"method": {"temperature": 0}}}, "base.method.temperature"),
    ({"base": {"preset": "best"}}, "base.preset"),
    ({"base": {"data": {"name": "files", "files": {"npz": "x"}}}}, "base.data.name"),
    ({"base": {"data": {"name": "imported", "imported": "absent"}}}, "base.data.imported"),
    ({"base": {"run": {"workers": 2}}}, "base.run.workers"),
    ({"base": {"sampling": {"num_neighbors": [5]}}}, "base.sampling.num_neighbors"),
    ({"base": {"data": {"name": "digits", "imported": "x"}}}, "base.data.imported"),
    ({"base": {}, "space": {"run.seed": {"kind": "choice", "values": [1]}}}, "space.run.seed"),
    ({"base": {}, "space": {"method.heat": {"kind": "choice", "values": [1]}}}, "space.method.heat"),
    ({"base": {}, "space": {"method.temperature": {"kind": "eval", "values": [1]}}}, "space.method.temperature"),
    ({"base": {}, "space": {"optimiser.lr": {"kind": "uniform", "low": 1, "high": 0}}}, "space.optimiser.lr.uniform"),
    (
        {"base": {}, "space": {"optimiser.epochs": {"kind": "integer", "low": 1, "high": 10**400}}},
        "space.optimiser.epochs",
    ),
    ({"base": {}, "space": {"optimiser.lr": {"kind": "choice", "values": [[[]]]}}}, "space.optimiser.lr"),
    ({"base": {}, "starts": [{"method.heat": 1}]}, "starts.0.method.heat"),
    ({"base": {}, "starts": [{"method.temperature": "x"}]}, "starts.0"),
    ({"base": {}, "starts": [{"": 1}]}, "starts.0"),
    ({"base": {"method": "other"}}, "base.method"),
    ({"base": {"objective": {"temperature": 0.5}}}, "base.objective"),
    ({"base": {}, "trials": 0}, "trials"),
    ({"base": {}, "objective": "test_accuracy"}, "objective"),
    ({"base": {}, "objective": "link_auc", "held_out_edges": 0}, "objective"),
    ({"base": parse_spec({}).model_dump(mode="json")}, "space"),  # nothing is left to search
    ({"base": {"optimiser": {"epochs": 4}}, "starts": [{"optimiser.epochs": 5}]}, "starts.0.optimiser.epochs"),
    ({"base": {}, "algorithm": "grid"}, "space.method.reg.coefficient"),
    (b'{"base": {}, "space": {"optimiser.lr": {"kind": "choice", "values": [NaN]}}}', "space.optimiser.lr.values.0"),
    ({"base": {}, "space": {"optimiser.lr": {"kind": "choice", "values": [0.1] * 10_001}}}, "space"),
    ({"base": {"data": {"name": "synthetic", "synthetic": {"classes": 1}}}}, "objective"),
]


@pytest.mark.parametrize("document, field", BAD_SWEEPS)
def test_field_of_a_sweep_that_is_wrong_is_named(shared: Live, document: Any, field: str) -> None:
    problem = checked(post(shared, document, "/v1/sweeps"), 422)
    assert problem.errors is not None
    assert field in [error.field for error in problem.errors]


@pytest.mark.parametrize(
    "query, field",
    [
        ({"priority": 101}, "priority"), ({"priority": "high"}, "priority"),
        ({"deadline_minutes": 0}, "deadline_minutes"), ({"deadline_minutes": "nan"}, "deadline_minutes"),
        ({"deadline_minutes": "inf"}, "deadline_minutes"),
        ({"name": ""}, "name"), ({"name": "x" * 201}, "name"), ({"name": "a\nb"}, "name"),
    ],
)  # fmt: skip
def test_parameter_that_is_wrong_is_named(shared: Live, query: dict[str, Any], field: str) -> None:
    problem = checked(post(shared, SMALL, **query), 422)
    assert problem.errors is not None
    assert problem.errors[0].field == field


HUGE = {"data": {"name": "synthetic", "synthetic": {"nodes": 100_000_000, "features": 10_000}}}


def test_a_cluster_is_asked_for_the_memory_of_one_trial(serve: Callable[..., Live]) -> None:
    limit = "2GB"  # of a worker; twelve trials would not fit in it side by side, and need not
    live = serve(runner="ray", ray_jobs_url="http://127.0.0.1:1", memory_limit=limit)
    one, many = (
        post(live, {"base": SMALL, "trials": 12, "concurrency": count}, "/v1/sweeps").json() for count in (1, 12)
    )
    assert one["memory_bytes"] == many["memory_bytes"] > 0


def test_what_does_not_fit_in_memory_is_refused_with_the_number(shared: Live) -> None:
    problem = checked(post(shared, HUGE), 422)
    assert problem.errors is not None
    assert problem.errors[0].field == "sampling"
    assert " GB" in problem.detail
    assert "It may use 8.0 GB" in problem.detail
    assert "--" not in problem.detail
    assert "`nml" not in problem.detail
    assert problem.type == "urn:nml:problem:memory"


def test_sweep_that_does_not_fit_says_how_many_trials_do_not(shared: Live) -> None:
    problem = checked(post(shared, {"base": SMALL, "concurrency": 1_000}, "/v1/sweeps"), 422)
    assert problem.errors is not None
    assert problem.errors[0].field == "concurrency"
    assert "1000 trials" in problem.detail
    problem = checked(post(shared, {"base": SMALL, "resources": {"memory_gb": 0.1}}, "/v1/sweeps"), 422)
    assert problem.errors is not None
    assert problem.errors[0].field == "resources.memory_gb"
    problem = checked(post(shared, {"base": HUGE}, "/v1/sweeps"), 422)
    assert problem.errors is not None
    assert problem.errors[0].field == "base.sampling"


@pytest.mark.parametrize("path, place", [("/v1/jobs", "data.imported"), ("/v1/sweeps", "base.data.imported")])
def test_data_set_that_is_deleted_at_the_last_moment_is_named(
    live: Live, monkeypatch: pytest.MonkeyPatch, path: str, place: str
) -> None:
    ref = add(live.store, live.settings, "papers", "0" * 12)
    real = live.store.jobs.submit

    def late(*given: Any, **options: Any) -> Any:
        live.store.datasets.delete(ref)
        return real(*given, **options)

    monkeypatch.setattr(live.store.jobs, "submit", late)
    base = SMALL | {"data": {"name": "imported", "imported": "papers"}}
    sweep = {"base": base, "objective": "i_nml", "trials": 2, "concurrency": 1}
    refused = checked(post(live, base if path == "/v1/jobs" else sweep, path), 422)
    assert [(error.field, "has just been deleted" in error.message) for error in refused.errors] == [(place, True)]


def test_same_key_and_request_give_the_same_job(live: Live) -> None:
    def send(document: Any, key: str, path: str = "/v1/jobs", **query: Any) -> Any:
        return live.http.post(path, json=document, headers={"Idempotency-Key": key}, params=query)

    first = send(SMALL, "one")
    again = send(dict(reversed(SMALL.items())), "one")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert send(SMALL, "two").json()["id"] != first.json()["id"]
    for other in (
        send(SMALL | {"run": {"seed": 1}}, "one"),
        send(SMALL, "one", priority=1),
        send({"base": SMALL, "concurrency": 1}, "one", "/v1/sweeps"),
    ):
        problem = checked(other, 422)
        assert problem.type == "urn:nml:problem:idempotency-conflict"
        assert problem.errors is not None
        assert problem.errors[0].field == "Idempotency-Key"
    for key in ("", "x" * 201, "a b"):
        problem = checked(send(SMALL, key), 422)
        assert problem.errors is not None
        assert problem.errors[0].field == "idempotency-key"
    assert len(live.http.get("/v1/jobs").json()["items"]) == 2


def test_repeat_finds_its_job_whatever_has_changed_since(serve: Callable[..., Live]) -> None:
    headers = {"Idempotency-Key": "once"}
    made = serve().http.post("/v1/jobs", json=SMALL, headers=headers).json()
    full = serve(min_free_bytes=10**18).http  # nothing new is taken there
    again = full.post("/v1/jobs", json=SMALL, headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, made["id"])
    assert again.headers["idempotent-replayed"] == "true"
    for path, document in (("/v1/jobs", SMALL), ("/v1/sweeps", {"base": SMALL})):
        assert checked(full.post(path, json=document), 507).title == "Insufficient Storage"
