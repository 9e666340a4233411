"""A headless browser and the test site, under a strict Content-Security-Policy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

from django_durable_tasks.store import connections
from tests.factories import first_rows
from tests.waiting import until

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--window-size=1500,1000",
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Start Chromium with an empty profile."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip(
            "NO BROWSER: the admin was not looked at. Install the packages chromium and"
            " chromium-driver."
        )
    options = ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=ChromeService(driver))
    chrome.set_page_load_timeout(60)
    yield chrome
    chrome.quit()


@pytest.fixture(scope="session")
def site_address(django_db_setup: None) -> Iterator[str]:
    """Serve the test project."""
    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, "tests.browser.policy.strict"]):
        server = LiveServer("localhost")
        yield server.url
        server.stop()


class Visit:
    """The actions of a user in the browser."""

    def __init__(self, chrome: Chrome, site: str, folder: Path) -> None:
        self.chrome, self.site, self.folder = chrome, site, folder

    def go(self, address: str) -> None:
        """Open a page of the site."""
        self.chrome.get(self.site + address)

    def find(self, selector: str) -> Any:
        """Return the first element of this CSS selector; wait until there is one."""
        return self._first(By.CSS_SELECTOR, selector)

    def follow(self, text: str) -> None:
        """Click the link with this text."""
        self._first(By.PARTIAL_LINK_TEXT, text).click()

    def press(self, text: str) -> None:
        """Press the button, or the link styled as one, with this text."""
        self._first(
            By.XPATH,
            "//*[self::button or self::a or self::input[@type='submit']]"
            f"[contains(normalize-space(.), '{text}') or contains(@value, '{text}')]",
        ).click()

    def _first(self, by: str, selector: str) -> Any:
        # The page that a click opens may still be loading.
        found = until(
            lambda: self.chrome.find_elements(by, selector),
            within=30,
            message=f"the page contains {selector}",
        )
        return found[0]

    def write(self, field: str, text: str) -> None:
        """Replace the text of a form field."""
        element = self.find(f"[name='{field}']")
        element.clear()
        element.send_keys(text)

    def log_in(self) -> None:
        """Log in with the form, as a superuser."""
        User.objects.create_superuser("ann", password="swordfish")
        self.go("/admin/")
        self.write("username", "ann")
        self.write("password", "swordfish")
        self.find("[type='submit']").click()
        self.shows("Site administration")

    def text(self) -> str:
        """Return the text of the page, or an empty string while the next page is loading."""
        shown: str = self.chrome.execute_script(
            "return document.body ? document.body.innerText : ''"
        )
        return shown

    def shows(self, text: str) -> None:
        """Wait until the page shows this text."""

        def shown() -> bool:
            return text in self.text()

        until(shown, within=30, message=f"the page shows {text!r}")

    def console_errors(self) -> list[str]:
        """Return the messages in the browser's console since the last call."""
        return [str(entry["message"]) for entry in self.chrome.get_log("browser")]  # type: ignore[no-untyped-call]


@pytest.fixture
def visit(
    chromium: Chrome, site_address: str, transactional_db: None, tmp_path: Path
) -> Iterator[Visit]:
    """Provide a browser session that begins logged out, with an empty console, on a site with its
    seed rows.
    """
    first_rows()
    chromium.delete_all_cookies()
    visit = Visit(chromium, site_address, tmp_path)
    visit.console_errors()
    yield visit
    chromium.get("about:blank")
    connections.close_all()
