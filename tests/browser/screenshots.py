"""Pictures of the console for README and docs, of a service that trains digits: `make screenshots`.

Needs Chromium. The pictures are docs/console/*.png; nothing compares them, so look at them before you commit.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

from service.cli.demo_service import running_service
from service.client import Client
from tests.browser.conftest import ARGUMENTS, PATIENCE, find_browser

OUT = Path(__file__).parents[2] / "docs" / "console"
JOBS = (
    ("digits, as preset", {}),
    ("digits, GRACE", {"method": "grace"}),
    ("digits, 64 wide", {"encoder": {"dim": 64}}),
)
WIDE, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 844}
EPOCHS = 60


def main() -> None:
    program = find_browser()
    if program is None:
        sys.exit("There is no browser. Try: apt-get install chromium")
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running_service(Path(folder) / "home", Path(folder) / "log") as url:
        with Client(url) as client:
            jobs = [
                client.submit({"data": {"name": "digits"}, "optimiser": {"epochs": EPOCHS}, **changes}, name=name)
                for name, changes in JOBS
            ]
            ids = [client.vectors.wait(job).version for job in jobs]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
            take(browser, f"{url}/", "jobs", "test accuracy")
            take(browser, f"{url}/#/job/{ids[0]}", "job", "Log")
            take(browser, f"{url}/#/job/{ids[0]}", "job-phone", "Log", size=PHONE)
            take(browser, f"{url}/#/compare?ids={ids[0]},{ids[1]}", "compare", "Figures")
            take(browser, f"{url}/#/explore/{ids[0]}", "explore", "All 1,797 nodes")
            take(browser, f"{url}/#/explore/{ids[0]}", "explore-dark", "All 1,797 nodes", dark=True)
            browser.close()


def take(browser: Browser, url: str, name: str, text: str, *, size: dict[str, int] = WIDE, dark: bool = False) -> None:
    """Open a page, wait until it says `text`, and keep a picture of it."""
    context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(url)
    expect(page.get_by_text(text).first).to_be_visible(timeout=PATIENCE)
    page.wait_for_load_state("networkidle")
    if name.startswith("explore"):
        page.locator("canvas").click()
        expect(page.locator(".near li").first).to_be_visible(timeout=PATIENCE)
    page.screenshot(path=OUT / f"{name}.png")
    context.close()


if __name__ == "__main__":
    main()
