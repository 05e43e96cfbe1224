"""The pages in a real browser, without network: Chromium and its driver must be installed, else these are skipped."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from report_samples import sample_embedding, sample_figures, sample_history, sample_report

from pour.report import ReportedRun, ReportServer, write_report

selenium = pytest.importorskip("selenium", reason="the browser tests need selenium: pip install selenium")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement

EVIL = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    report = sample_report(history=sample_history(), embedding=sample_embedding())
    other = sample_report(methods=("pour-d",), shift=0.3, history=sample_history("pour-d"))
    write_report(
        report,
        folder / "report.html",
        runs=[ReportedRun(name="pour-d", report=other)],
        figures=sample_figures(),
        command="pour audit original.safetensors forgotten.safetensors --forget three --report report.html",
    )
    report.save(folder / "report.json")
    other.save(folder / "other.json")
    write_report(
        sample_report(
            classes=("zero", "one", "two", EVIL), methods=(EVIL,), embedding=sample_embedding(models=("original", EVIL))
        ),
        folder / "evil.html",
    )
    write_report(sample_report(retrained=False), folder / "alone.html")
    return folder


def visit(browser: WebDriver, address: Path | str, *, width: int = 1280, scheme: str = "light") -> None:
    """Open a page at a width, in the system's light or dark, with nothing kept and no old messages."""
    emulate(browser, width=width, scheme=scheme)
    browser.get(address if isinstance(address, str) else address.as_uri())
    browser.execute_script("localStorage.clear()")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.refresh()


def emulate(browser: WebDriver, *, width: int, scheme: str) -> None:
    phone = width < 600
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    # Without the smooth scrolling, which a click would not wait for.
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def problems(browser: WebDriver) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


def requested(browser: WebDriver) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def column(table: WebElement, index: int) -> list[str]:
    script = "return [...arguments[0].tBodies[0].rows].map((row) => row.cells[arguments[1]].dataset.value)"
    found: list[str] = table.parent.execute_script(script, table, index)
    return found


def shown(browser: WebDriver, selector: str) -> list[WebElement]:
    script = "return [...document.querySelectorAll(arguments[0])].filter((element) => element.checkVisibility())"
    found: list[WebElement] = browser.execute_script(script, selector)
    return found


def place_of(browser: WebDriver, canvas: WebElement, model: str, index: int) -> tuple[int, int]:
    """Where a point is drawn, from the canvas's middle."""
    script = "return JSON.parse(document.getElementById('embedding-data').textContent)"
    data = browser.execute_script(script)
    size = canvas.size["width"]
    x, y = (data["points"][model][axis][index] / data["grid"] * (size - 24) + 12 for axis in (0, 1))
    return round(x - size / 2), round(size - y - size / 2)


def hover(browser: WebDriver, canvas: WebElement, place: tuple[int, int]) -> None:
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    ActionChains(browser, duration=0).move_to_element_with_offset(canvas, *place).perform()


@pytest.mark.parametrize("name", ["report", "evil", "alone"])
def test_opens_offline_with_no_request_and_no_message(name: str, browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / f"{name}.html")
    assert problems(browser) == []
    sent = requested(browser)
    assert (pages / f"{name}.html").as_uri() in sent
    assert [url for url in sent if not url.startswith(("file:", "data:"))] == []
    assert [url for url in sent if url.startswith("file:")] == [(pages / f"{name}.html").as_uri()]
    entries = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [entry for entry in entries if not entry.startswith("data:")] == []


def test_the_policy_stops_what_should_not_be_there(browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "report.html")
    stopped = browser.execute_async_script("""
        const done = arguments[0];
        const stopped = [];
        document.addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
        const add = (tag, values) => document.body.append(Object.assign(document.createElement(tag), values));
        add("img", { src: "https://example.org/x.png" });
        add("script", { textContent: "document.title = 'taken'" });
        add("style", { textContent: "body { display: none }" });
        fetch("https://example.org/").catch(() => setTimeout(() => done(stopped), 200));
    """)
    assert {"img-src", "script-src-elem", "style-src-elem", "connect-src"} <= set(stopped)
    assert browser.title != "taken"
    assert browser.find_element(By.TAG_NAME, "body").is_displayed()
    browser.get_log("browser")


def test_names_with_script_in_them_are_only_text(browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "evil.html")
    assert EVIL in browser.title
    assert browser.find_element(By.TAG_NAME, "h1").text.count("<script>") == 2
    canvas = browser.find_element(By.CSS_SELECTOR, ".panel canvas")
    canvas.send_keys(Keys.HOME)
    assert "answers" in browser.find_element(By.ID, "card").text
    assert "taken" not in (browser.title.replace(EVIL, ""))
    assert browser.find_elements(By.CSS_SELECTOR, "img[src='x']") == []
    assert problems(browser) == []


def test_hover_shows_the_image_and_the_answers_before_and_after(browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "report.html")
    embedding = sample_embedding()
    classes = ("zero", "one", "two", "three")
    for panel, (model, index) in enumerate((("original", 7), ("pour-p", 41))):
        canvas = browser.find_elements(By.CSS_SELECTOR, ".panel canvas")[panel]
        hover(browser, canvas, place_of(browser, canvas, model, index))
        card = browser.find_element(By.ID, "card")
        found = int(card.get_attribute("data-point") or "-1")
        # Neighbours lie close together: it is this point, or one of the same class.
        assert embedding.labels[found] == embedding.labels[index]
        label = embedding.labels[found]
        assert f"True class\n{classes[label]}" in card.text
        for name in ("original", "pour-p", "retrained"):
            assert f"{name} answers\n{classes[embedding.predictions[name][found]]}" in card.text
        assert problems(browser) == []
        script = "return document.getElementById('tile').getContext('2d').getImageData(4, 4, 1, 1).data[0]"
        WebDriverWait(browser, 5).until(lambda driver: driver.find_element(By.ID, "tile").is_displayed())
        assert browser.execute_script(script) == 60 * label
        # Chromium has advice for pages that read a canvas often, as this test does.
        browser.get_log("browser")


def test_map_by_keyboard_and_its_switches(browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "report.html")
    embedding = sample_embedding()
    card = browser.find_element(By.ID, "card")
    canvas = browser.find_element(By.CSS_SELECTOR, ".panel canvas")
    canvas.send_keys(Keys.HOME)
    assert card.get_attribute("data-point") == "0"
    seen = {0}
    for _ in range(12):
        canvas.send_keys(Keys.ARROW_RIGHT)
        seen.add(int(card.get_attribute("data-point") or "-1"))
    xs = embedding.points["original"][sorted(seen), 0]
    assert len(seen) > 3
    assert xs.max() > 15
    assert "True class" in (browser.find_element(By.ID, "status").get_attribute("textContent") or "")
    Select(browser.find_element(By.ID, "class")).select_by_visible_text("three (forgotten)")
    canvas.send_keys(Keys.HOME)
    assert embedding.labels[int(card.get_attribute("data-point") or "-1")] == 3
    assert "three (forgotten)" in card.text
    hover(browser, canvas, place_of(browser, canvas, "original", 0))
    assert card.get_attribute("data-point") == ""
    before = browser.execute_script("return arguments[0].toDataURL()", canvas)
    Select(browser.find_element(By.CSS_SELECTOR, ".panel select")).select_by_visible_text("retrained")
    assert browser.execute_script("return arguments[0].toDataURL()", canvas) != before
    canvas.send_keys(Keys.END, Keys.ESCAPE)
    assert card.get_attribute("data-point") == ""
    assert problems(browser) == []


def test_switching_the_method_and_the_class_of_a_figure(browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "report.html")
    assert {part.get_attribute("data-run") for part in shown(browser, "[data-run]")} == {"0"}
    Select(browser.find_element(By.ID, "run")).select_by_visible_text("pour-d")
    assert {part.get_attribute("data-run") for part in shown(browser, "[data-run]")} == {"1"}
    assert [figure.get_attribute("data-choice") for figure in shown(browser, "[data-group='Class'] figure")] == ["zero"]
    Select(browser.find_element(By.CSS_SELECTOR, "[data-group='Class'] select")).select_by_visible_text("one")
    assert [figure.get_attribute("data-choice") for figure in shown(browser, "[data-group='Class'] figure")] == ["one"]
    assert problems(browser) == []


def test_sorting_by_mouse_and_keyboard(browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "report.html")
    table = shown(browser, "#verdicts table")[0]
    first = column(table, 1)
    button = table.find_elements(By.CSS_SELECTOR, "thead button")[1]
    head = button.find_element(By.XPATH, "..")
    button.click()
    assert [float(value) for value in column(table, 1)] == sorted(map(float, first))
    assert head.get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert [float(value) for value in column(table, 1)] == sorted(map(float, first), reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    assert "descending" in (browser.find_element(By.ID, "status").get_attribute("textContent") or "")
    button.send_keys(Keys.SPACE)
    assert column(table, 1) == first
    assert head.get_attribute("aria-sort") is None
    assert problems(browser) == []


def test_filtering(browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "report.html")
    lines = sample_report().lines
    rows = "#verdicts tbody tr"
    on_train = [line for line in lines if line.name.endswith("_train") or line.name.startswith("acc_t")]
    assert len(shown(browser, rows)) == len(lines) - len(on_train)
    browser.find_element(By.ID, "train").click()
    assert len(shown(browser, rows)) == len(lines)
    browser.find_element(By.ID, "search").send_keys("CKA_f")
    assert len(shown(browser, rows)) == sum("cka_f" in line.name for line in lines)
    browser.find_element(By.ID, "search").clear()
    browser.find_element(By.ID, "search").send_keys(Keys.SPACE)
    browser.find_element(By.CSS_SELECTOR, "#verdict-filter .v-leaks").click()
    left = [row.get_attribute("data-verdict") for row in shown(browser, rows)]
    assert "leaks" not in left
    assert len(left) == sum(line.verdict != "leaks more" for line in lines)
    assert f"{len(left)} of {len(lines)}" in browser.find_element(By.ID, "shown").text


def test_light_and_dark_by_system_and_by_hand(browser: WebDriver, pages: Path) -> None:
    script = "return getComputedStyle(document.body).backgroundColor"
    found = {}
    for scheme in ("light", "dark"):
        visit(browser, pages / "report.html", scheme=scheme)
        found[scheme] = browser.execute_script(script)
        assert {image.get_attribute("class") for image in shown(browser, "#figures figure img[class]")} == {
            f"for-{scheme}"
        }
    assert found["light"] != found["dark"]
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script(script) == found["light"]
    browser.refresh()
    assert browser.execute_script(script) == found["light"]
    assert browser.find_element(By.ID, "theme").text == "Dark colours"
    assert problems(browser) == []


@pytest.mark.parametrize(("name", "width"), [("report", 360), ("report", 768), ("evil", 360)])
def test_narrow_screens_do_not_scroll_sideways(name: str, width: int, browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / f"{name}.html", width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert problems(browser) == []


@pytest.mark.parametrize("width", [880, 1000, 1300])
def test_no_verdict_is_behind_the_edge_of_its_table(width: int, browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "report.html", width=width)
    browser.find_element(By.ID, "train").click()
    hidden = browser.execute_script(
        "return [...document.querySelectorAll('#verdicts .scroll')]"
        ".filter((part) => part.clientWidth && part.scrollWidth > part.clientWidth).map((part) => part.scrollWidth)"
    )
    assert hidden == []


def test_essentials_without_javascript(browser: WebDriver, pages: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        emulate(browser, width=1280, scheme="light")
        browser.get((pages / "report.html").as_uri())
    finally:
        # The driver itself looks at the page with scripts.
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert len(shown(browser, "#verdicts tbody tr")) == 2 * len(sample_report().lines)
    # Three of the page's own, two trade-offs, relearning and losses.
    assert len(shown(browser, "#figures figure")) == 7
    assert "needs JavaScript" in browser.find_element(By.ID, "map").text
    assert shown(browser, "button, select, canvas") == []


def test_prints_to_pdf(browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / "report.html", scheme="dark")
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert shown(browser, "button:not(.sort), .controls, nav") == []
        assert len(shown(browser, "#verdicts tbody tr")) > 20
        assert "Unlearned" in shown(browser, "#verdicts thead")[0].text
        # A4 between the margins: everything must fit on paper, where nothing scrolls.
        metrics = {"width": 688, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 688
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_server_lists_and_compares(browser: WebDriver, pages: Path) -> None:
    with ReportServer(pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            for width in (1280, 360):
                visit(browser, server.url, width=width)
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width
                for name in ("report", "other"):
                    browser.find_element(By.CSS_SELECTOR, f"input[value='{name}']").click()
                browser.find_element(By.CSS_SELECTOR, "button.go").click()
                WebDriverWait(browser, 10).until(lambda driver: driver.title == "other, report side by side")
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            table = browser.find_element(By.TAG_NAME, "table")
            table.find_elements(By.CSS_SELECTOR, "thead button")[3].click()
            changes = [float(value) for value in column(table, 3)]
            assert changes == sorted(changes)
            assert min(changes) == pytest.approx(-0.3)
            visit(browser, f"{server.url}files/report.html")
            assert shown(browser, ".panel canvas")
            assert all(url.startswith((server.url, "data:")) for url in requested(browser))
            assert problems(browser) == []
        finally:
            server.shutdown()
            thread.join(5)


@pytest.fixture(scope="module")
def axe() -> str:
    """The accessibility checker, from POUR_AXE (a file) or from npm into the user's cache; it is not part of pour."""
    given = os.environ.get("POUR_AXE")
    if given:
        return Path(given).read_text(encoding="utf-8")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pour-tests"
    file = cache / "node_modules/axe-core/axe.min.js"
    npm = shutil.which("npm")
    if not file.exists() and npm is not None:
        cache.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "axe-core@4", "--prefix", str(cache), "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, check=False, capture_output=True, timeout=60)
    if not file.exists():
        pytest.skip("there is no axe-core here: set POUR_AXE to its axe.min.js, or install npm with network")
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("report", 1280, "light"), ("report", 390, "dark"), ("alone", 390, "light"), ("alone", 1280, "dark")],
)
def test_accessibility(name: str, width: int, scheme: str, axe: str, browser: WebDriver, pages: Path) -> None:
    visit(browser, pages / f"{name}.html", width=width, scheme=scheme)
    browser.execute_script(axe)
    result: dict[str, Any] = browser.execute_async_script("axe.run(document).then(arguments[0])")
    serious = [
        f"{found['id']}: {node['html'][:120]} {node['any'][:1]}"
        for found in result["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]
    assert serious == []
    assert len(result["passes"]) > 10
