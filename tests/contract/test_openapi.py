"""Whatever is asked, answers are as /openapi.json says: schemathesis makes requests from it, good and bad ones.

Ids of what there is are the values of path parameters, so that every route is really reached; whatever else stands
there is what schemathesis makes up to be refused. The same requests every time: nothing is drawn at random.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis import Case, HookContext, Response, engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events

from service.app import TAGS, create_app
from service.settings import Settings
from tests.contract.stage import ALIAS, DATASETS, FIGURES, JOBS, NODE, SPARE, SWEEPS, VERSION, furnish
from tests.service.api.server import Live, serving
from tests.service.datasets.forms import EDGES, NODES

CHANGING = {"cancel_job", "delete_job", "cancel_sweep", "delete_sweep", "delete_dataset"}
CHANGING |= {"publish_embedding", "build_index", "delete_embedding", "set_alias", "remove_alias"}
NEEDS_ENCODER = "/embed"  # which only training makes: tests/service/api/embeddings/test_new_nodes.py
STREAMS = ("watch_job", "watch_sweep")
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
NOT_OURS = (
    "negative_data_rejection",  # a header that is not described is no error; test_bad_inputs names what must be refused
    "positive_data_acceptance",  # specs have rules between fields that JSON Schema cannot say
    "missing_required_header", "use_after_free", "ensure_resource_availability", "object_level_authorization",
)  # fmt: skip
# Read from responses, these would make one run unlike the next: new jobs have random ids.
SAME_EVERY_TIME = {"extra-data-sources": {"responses": False}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that asks for keys, furnished; uploads are not waited for, since nobody imports them."""
    settings = Settings(
        home=tmp_path_factory.mktemp("home"), require_key=True, memory_limit="8GB", min_free_bytes=0,
        lease_seconds=3_600, poll_seconds=0.02, upload_wait_seconds=0, rate_per_second=1e6, rate_burst=10**6,
    )  # fmt: skip
    with serving(settings) as server:
        yield server


# those with the largest specs take a minute each: of them `make test-slow` asks more, below
@pytest.mark.parametrize("tag", [tag["name"] for tag in TAGS if tag["name"] not in ("jobs", "sweeps")])
def test_answers_are_as_described(live: Live, tag: str) -> None:
    statuses = explored(live, tag, examples=6, without_coverage=("submit_job", "submit_sweep"))
    for operation, seen in statuses.items():
        if operation.endswith(NEEDS_ENCODER):
            continue
        assert any(200 <= status < 300 for status in seen), f"{operation} was never answered well: {seen}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tag", [tag["name"] for tag in TAGS])
def test_answers_are_as_described_whatever_is_asked(live: Live, tag: str) -> None:
    explored(live, tag, examples=30)


@pytest.mark.slow
def test_answers_are_as_described_along_the_links(live: Live) -> None:
    """Submit, then show, watch, cancel and read what was submitted."""
    statuses = explored(live, None, examples=60, along_links=True)
    assert sum(statuses[""].values()) > 300


def explored(live: Live, tag: str | None, **how: Any) -> dict[str, Counter[int]]:
    """Send what schemathesis makes up; returns the answers' statuses by operation. Fails with all that is amiss."""
    furnish(live.store, live.settings)
    key = live.store.keys.create("all", ["admin"])[1]
    schema = schemathesis.openapi.from_dict(described(tag), config=configured(**how))
    schema.config.update(base_url=live.url.rstrip("/"), headers={"Authorization": f"Bearer {key}"})

    @schema.hook("after_call")
    def restore(context: HookContext, case: Case, response: Response) -> None:
        if case.operation.definition.raw.get("operationId") in CHANGING:
            furnish(live.store, live.settings)

    statuses: dict[str, Counter[int]] = defaultdict(Counter)
    amiss: list[str] = []
    for event in engine.from_schema(schema).execute():
        match event:
            case events.ScenarioFinished():
                answers = [item.response for item in event.recorder.interactions.values() if item.response is not None]
                statuses[event.label or ""].update(answer.status_code for answer in answers)
                found = [check for checks in event.recorder.checks.values() for check in checks]
                failed = [(check.name, check.failure_info) for check in found if check.failure_info is not None]
                amiss += [f"{event.label}, {name}: {why.failure.message}\n{why.code_sample}" for name, why in failed]
            case events.NonFatalError():
                amiss.append(f"{event.label}: {event.value!r}")
            case events.FatalError():
                raise event.exception
    assert not amiss, f"{len(amiss)} failures\n\n" + "\n\n".join(amiss[:20])
    return statuses


def described(tag: str | None) -> dict[str, Any]:
    """The app's own document, with what there is to be found as the values of path parameters; of one tag, or all."""
    document = copy.deepcopy(create_app(Settings(home=Path("nowhere"), require_key=True)).openapi())
    for path, item in list(document["paths"].items()):
        if tag is not None and all(tag not in operation["tags"] for operation in item.values()):
            del document["paths"][path]
        jobs = SWEEPS if "/sweeps" in path else JOBS
        if "/figures/" in path or "/embeddings/" in path:  # of which only some have any
            jobs = tuple(job for job in jobs if job.endswith(("succeeded", "running")))[::-1]
        if path.endswith("/events"):  # those who wait have nothing more to tell
            jobs = tuple(job for job in jobs if not job.endswith(("queued", "cancelling")))[::-1]
        known = {"job_id": jobs, "name": FIGURES, "ref": (*DATASETS, "papers", "digits")}
        known |= {"version": (VERSION, SPARE, ALIAS), "node": (NODE, "11"), "alias": (ALIAS, "candidate", "latest")}
        for parameter in (found for operation in item.values() for found in operation.get("parameters", ())):
            if parameter["in"] == "path" and parameter["name"] in known:
                parameter["schema"] = {"type": "string", "enum": [*known[parameter["name"]], "absent"]}
    if "/v1/datasets" in document["paths"]:
        form = document["paths"]["/v1/datasets"]["post"]["requestBody"]["content"]["multipart/form-data"]
        for name, table in {"nodes": NODES, "edges": EDGES}.items():
            form["schema"]["properties"][name] = {"type": "string", "enum": [table]}
    for schema, name, values in (("Publish", "job", ["succeeded", VERSION]), ("MoveAlias", "version", [VERSION])):
        document["components"]["schemas"][schema]["properties"][name] = {"type": "string", "enum": values}
    return document


def configured(
    examples: int, *, along_links: bool = False, without_coverage: tuple[str, ...] = ()
) -> SchemathesisConfig:
    """How to explore.

    Args:
        examples: requests made up per operation, besides those that go through every field systematically ("coverage").
        along_links: instead of one operation at a time.
        without_coverage: operations that have so many fields that it takes too long.
    """
    wanted = ("stateful",) if along_links else ("examples", "coverage", "fuzzing")
    phases: dict[str, Any] = {
        name: {"enabled": name in wanted} | (SAME_EVERY_TIME if name != "stateful" else {})
        for name in ("examples", "coverage", "fuzzing", "stateful")
    }
    phases["fuzzing"]["error-feedback"] = {"enabled": False}
    # A stream that has nothing to tell is left after this long, which is no failure; an answer that does not even begin
    # by then is asked for again.
    patience = {"request-timeout": 0.5, "request-retries": 5}
    operations: list[dict[str, Any]] = [{"include-operation-id": name} | patience for name in STREAMS]
    for name in without_coverage:
        operations.append({"include-operation-id": name, "phases": {"coverage": {"enabled": False}}})
    return SchemathesisConfig.from_dict(
        {
            "seed": 1, "continue-on-failure": True, "request-timeout": 60, "phases": phases, "operations": operations,
            "generation": {"max-examples": examples, "deterministic": True, "no-shrink": True, "database": "none"},
            "checks": {name: {"enabled": True} for name in CHECKS} | {name: {"enabled": False} for name in NOT_OURS},
        }
    )  # fmt: skip
