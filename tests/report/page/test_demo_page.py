"""The page that pour demo writes, in a real browser without network."""

from __future__ import annotations

import pytest

pytest.importorskip("selenium", reason="the browser tests need selenium: pip install selenium")
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = pytest.mark.slow


def test_the_demos_page_works_offline(browser, demo):
    page = demo.folder / "report.html"
    assert page.stat().st_size < 5_000_000
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    WebDriverWait(browser, 20).until(lambda driver: driver.execute_script("return document.readyState") == "complete")
    assert "Forgetting" in browser.find_element(By.TAG_NAME, "h1").text
    figures = browser.find_elements(By.CSS_SELECTOR, "figure img")
    assert len(figures) >= 8
    assert all(browser.execute_script("return arguments[0].complete", figure) for figure in figures)
    assert all(figure.get_attribute("alt").strip() for figure in figures)
    rows = browser.find_elements(By.CSS_SELECTOR, "table tbody tr")
    assert len(rows) > 20
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    outside = [entry["message"] for entry in browser.get_log("performance") if '"url":"http' in entry["message"]]
    assert outside == []
