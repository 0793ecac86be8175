"""What a person does with the console, in a real browser against a real service: submit, watch, look, compare."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from service.cli.demo_service import running_service
from tests.browser.conftest import Complaints

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1_200)]

NAME = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TRAINING = 900_000  # milliseconds that a small job may take on a machine that has much else to do


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A service with its dispatcher, as `nml serve` starts it."""
    with running_service(tmp_path / "home", tmp_path / "service.log") as address:
        yield address


def test_a_job_is_submitted_watched_and_its_map_explored(page: Page, url: str, complaints: Complaints):
    page.goto(url)
    page.get_by_role("link", name="Submit the first job").click()
    fill_in(page)
    page.get_by_role("button", name="Submit job").click()

    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
    first = page.url
    expect(page.locator(".state.succeeded")).to_be_visible(timeout=TRAINING)  # nothing was reloaded
    expect(page.get_by_role("img", name=re.compile("Loss, epochs 1 to 4"))).to_be_visible()
    expect(page.locator("#log")).to_contain_text("epoch")
    page.get_by_label("Search").fill("no line has this")
    expect(page.locator("#log")).to_have_text("No line contains this.")

    page.get_by_role("link", name="Explore embeddings").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
    expect(page.get_by_text("All 1,797 nodes")).to_be_visible()
    page.locator("canvas").click()
    node = page.get_by_role("heading", level=2)
    expect(node).to_have_text(re.compile(r"Node \d+"))
    expect(page.locator(".near li")).to_have_count(10)
    nearest = page.locator(".near button").first
    name = nearest.text_content()
    nearest.click()
    expect(node).to_have_text(f"Node {name}")
    page.get_by_label("Node id").fill("42")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(node).to_have_text("Node 42")
    expect(page).to_have_url(re.compile(r"\?node=42$"))
    page.reload()  # everything that is seen has an address
    expect(node).to_have_text("Node 42")

    page.goto(first)
    page.get_by_role("link", name="Clone and edit").click()
    page.locator("#field-optimiser\\.epochs").fill("100000")  # it cannot end before it is cancelled
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("button", name="Cancel job").click()
    expect(page.locator(".state.cancelled")).to_be_visible(timeout=TRAINING)

    page.goto(first)
    page.get_by_role("button", name="Train with another seed").click()
    expect(page).not_to_have_url(first)
    page.get_by_role("link", name="Jobs").click()
    rows = page.locator(".jobs tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text(NAME)
    for row in range(3):
        rows.nth(row).get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare 3").click()
    expect(page.get_by_role("row", name=re.compile("run.seed"))).to_contain_text("0")
    expect(page.get_by_role("row", name=re.compile("probe.test"))).to_be_visible()
    page.go_back()
    expect(rows).to_have_count(3)
    assert complaints == []


def fill_in(page: Page) -> None:
    """A job of seconds."""
    page.get_by_label("Name", exact=True).fill(NAME)
    page.locator("#field-data\\.name").select_option("digits")
    for field, value in (("optimiser.epochs", "4"), ("encoder.hidden", "32"), ("encoder.dim", "16")):
        page.locator(f"#field-{field}".replace(".", "\\.")).fill(value)
    page.get_by_text("Evaluation", exact=True).click()
    page.locator("#field-evaluation\\.probe_epochs").fill("50")
    page.locator("#field-evaluation\\.figures").select_option("false")
