"""The site builds without a warning, its links and anchors work, and it requests nothing from another host."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver.chrome.webdriver import WebDriver


class Addresses(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and values.get("href"):
            self.links.add(str(values["href"]))
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.loaded.add(str(values.get("href")))
        elif tag in ("script", "img", "source", "iframe", "video") and values.get("src"):
            self.loaded.add(str(values["src"]))


@pytest.fixture(scope="module")
def addresses(site: Path) -> dict[Path, Addresses]:
    return {file: Addresses(file) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}


def test_every_page_of_the_navigation_is_built(site: Path, addresses: dict[Path, Addresses]) -> None:
    assert len(addresses) > 5
    assert (site / "index.html") in addresses


def test_links_and_anchors_work(addresses: dict[Path, Addresses]) -> None:
    broken = []
    for file, page in addresses.items():
        for link in page.links | page.loaded:
            address, anchor = urldefrag(link)
            if urlsplit(address).scheme or not (address or anchor):
                continue
            target = (file.parent / unquote(address)).resolve() if address else file
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                broken.append(f"{file.name}: {link}")
            elif anchor and target in addresses and unquote(anchor) not in addresses[target].anchors:
                broken.append(f"{file.name}: {link} has no such anchor")
    assert not broken, "\n".join(broken)


def test_no_page_loads_a_file_of_another_host(addresses: dict[Path, Addresses]) -> None:
    foreign = {f"{file.name}: {link}" for file, page in addresses.items() for link in page.loaded if "//" in link}
    assert not foreign


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Address of the site on this machine."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def requests_of(browser: WebDriver) -> list[str]:
    """Return the addresses that the browser has requested since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]


def test_the_pages_request_nothing_from_another_host(
    browser: WebDriver, address: str, site: Path, addresses: dict[Path, Addresses]
) -> None:
    requests_of(browser)
    requested = []
    for file in addresses:
        browser.get(f"{address}/{file.relative_to(site)}")
        requested += requests_of(browser)
    assert len(requested) > len(addresses)
    foreign = {url for url in requested if not url.startswith((address, "data:", "blob:", "about:", "chrome"))}
    assert not foreign


def test_the_search_finds_a_page(browser: WebDriver, address: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    browser.get(f"{address}/index.html")
    requests_of(browser)
    assert _wait(browser, "return document.querySelector('.md-search__button')")
    browser.execute_script("document.querySelector('.md-search__button').click()")
    assert _wait(browser, "return Boolean(document.activeElement.shadowRoot)")
    ActionChains(browser).send_keys("projector").perform()
    # The dialog of the search is a shadow tree.
    links = "[...document.activeElement.shadowRoot.querySelectorAll('a')].map(link => link.href)"
    found = _wait(browser, f"const links = {links}; return links.length && links")
    assert isinstance(found, list)
    assert any("projection" in link or "glossary" in link for link in found), found
    browser.get(found[0])
    assert "projector" in browser.execute_script("return document.body.innerText").lower()
    assert all(url.startswith((address, "data:", "blob:")) for url in requests_of(browser))


def _wait(browser: WebDriver, script: str, seconds: float = 10.0) -> object:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = browser.execute_script(script)
        if value:
            return value
        time.sleep(0.1)
    return None


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window(browser: WebDriver, address: str, width: int, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(f"{address}/index.html")
    browser.execute_script("localStorage.clear()")
    browser.get(f"{address}/index.html")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    dark = browser.execute_script("return document.body.getAttribute('data-md-color-scheme')")
    assert dark == ("slate" if scheme == "dark" else "default")
