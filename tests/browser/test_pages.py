"""Pages against an API without a dispatcher: refusals at their fields, keys, and text that would like to be HTML."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from service.settings import Settings
from tests.browser.conftest import Complaints
from tests.service.api.embeddings.published import put_version
from tests.service.api.server import SMALL, Live, serving

pytestmark = pytest.mark.browser

EVIL = '"><img src=x onerror=alert(1)>'


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(
            serving(Settings(home=tmp_path / "home", poll_seconds=0.02, memory_limit="8GB", **given))
        )


def test_a_refused_field_says_so_itself(serve: Callable[..., Live], page: Page, complaints: Complaints):
    live = serve()
    page.goto(f"{live.url}/#/new")
    epochs = page.locator("#field-optimiser\\.epochs")
    epochs.fill("many")
    page.get_by_text("Settings of the method").click()
    page.locator("#field-method\\.temperature").fill("99")
    page.get_by_role("button", name="Submit job").click()
    expect(epochs).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#field-optimiser\\.epochs-error")).to_contain_text("integer")
    expect(page.locator("#field-method\\.temperature-error")).to_contain_text("10")
    assert live.store.jobs.list(kind="train")[0] == []
    epochs.fill("3")
    page.locator("#field-method\\.temperature").fill("0.4")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator(".state.queued")).to_be_visible()
    (job,) = live.store.jobs.list(kind="train")[0]
    made = live.store.jobs.get(job.id)
    assert made is not None
    assert (made.spec["optimiser"]["epochs"], made.spec["method"]["temperature"]) == (3, 0.4)
    assert complaints.beside(422) == []


def test_a_clone_is_the_same_job_but_for_what_was_edited(
    serve: Callable[..., Live], page: Page, complaints: Complaints
):
    live = serve()
    first = live.submit(SMALL, name="first")
    page.goto(f"{live.url}/#/new?from={first['id']}")
    page.locator("#field-encoder\\.dim").fill("5")
    page.get_by_text("The same by curl or Python").click()
    shown = page.locator("pre").last.text_content()
    (call,) = [
        node
        for node in ast.walk(ast.parse(shown or ""))
        if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.Dict)
    ]
    assert ast.literal_eval(call.args[0])["encoder"] == {**first["spec"]["encoder"], "dim": 5}
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator(".state.queued")).to_be_visible()
    (second,) = [job for job in live.store.jobs.list(kind="train")[0] if job.id != first["id"]]
    spec: dict[str, Any] = live.http.get(f"/v1/jobs/{second.id}").json()["spec"]
    assert spec["encoder"].pop("dim") == 5
    assert first["spec"]["encoder"].pop("dim") == 4
    assert spec == first["spec"]
    assert complaints == []


def test_a_protected_service_asks_for_a_key_and_keeps_it_out_of_addresses(
    serve: Callable[..., Live], page: Page, complaints: Complaints
):
    live = serve(require_key=True)
    key = live.store.keys.create("ada", ["submit"])[1]
    page.goto(live.url)
    page.get_by_label("API key").fill("nml_wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("alert")).to_contain_text("wrong")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    assert key not in page.url
    page.reload()
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    page.get_by_role("button", name="Forget key").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert complaints.beside(401) == []


def test_ids_labels_and_names_stay_text(serve: Callable[..., Live], page: Page, complaints: Complaints):
    live = serve()
    ids = [f"{EVIL}{row}" for row in range(12)]
    classes = [EVIL, "<b>plain</b>"]
    put_version(
        live.store,
        live.settings,
        12,
        4,
        ids,
        [row % 2 for row in range(12)],
        classes=classes,
        version="01k9console0000000",
    )
    live.submit(SMALL, name=EVIL)
    page.goto(live.url)
    expect(page.get_by_role("link", name=EVIL)).to_be_visible()
    page.get_by_role("link", name="Explore").click()
    page.get_by_role("link", name="for tests").click()
    expect(page.get_by_text("All 12 nodes")).to_be_visible()
    expect(page.locator(".legend li").first).to_have_text(EVIL)
    page.locator("canvas").click()
    expect(page.get_by_role("heading", level=2)).to_contain_text(f"Node {EVIL}")
    expect(page.locator(".near li")).to_have_count(10)
    expect(page.locator(".near li").first).to_contain_text(EVIL)
    page.goto(f"{live.url}/#/explore/01k9console0000000?node=%3Cimg%3E")
    expect(page.get_by_text("No node of this version has the id <img>.")).to_be_visible()
    assert page.locator("main img, main script, main b img").count() == 0
    assert complaints == []


def test_curves_follow_the_stream_and_the_list_its_jobs(serve: Callable[..., Live], page: Page, complaints: Complaints):
    live = serve()
    page.goto(live.url)
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    live.submit(SMALL, name="live")
    page.get_by_role("link", name="live").click()
    expect(page.locator(".state.queued")).to_be_visible()
    job = live.claim()
    live.tell(job, 1, 2)
    expect(page.get_by_role("img", name="Loss, epochs 1 to 2: loss is 0.5")).to_be_visible()
    live.tell(job, 3, 4)
    expect(page.get_by_role("img", name="Loss, epochs 1 to 4: loss is 0.25")).to_be_visible()
    live.finish(job, "failed", failure_kind="oom", failure_message=EVIL)
    expect(page.get_by_role("alert")).to_contain_text(EVIL)
    page.go_back()
    expect(page.locator(".state.failed")).to_be_visible()
    assert complaints.beside(404) == []
