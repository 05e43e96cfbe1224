"""The documentation site, built once from a copy of the sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import browser as browser

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built site. A warning of the generator fails the build."""
    pytest.importorskip("zensical", reason="the site needs zensical: pip install -e .[dev]")
    folder = tmp_path_factory.mktemp("documentation")
    for name in ("docs", "notebooks"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
    for name in ("zensical.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "src").symlink_to(ROOT / "src")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"
