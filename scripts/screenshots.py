"""Photograph a report in headless Chromium, wide and narrow, light and dark (python scripts/screenshots.py PAGE)."""

from __future__ import annotations

import argparse
import base64
import io
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver

SIZES = {"desktop": (1280, 1500), "phone": (390, 1500)}
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def main() -> None:
    """Write four PNG files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(flag)
    with tempfile.TemporaryDirectory() as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            for size, (width, height) in SIZES.items():
                for scheme in ("light", "dark"):
                    take(driver, arguments.page, arguments.out / f"report-{size}-{scheme}.png", width, height, scheme)
        finally:
            driver.quit()


def take(driver: webdriver.Chrome, page: Path, out: Path, width: int, height: int, scheme: str) -> None:
    """One picture, in few enough colours to stay small."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(page.resolve().as_uri())
    answer = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    picture = Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")
    picture.quantize(128).save(out, optimize=True)


if __name__ == "__main__":
    main()
