"""The wheel and the source distribution contain the package, and the installed wheel works without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from command_line import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program without the repository on its path, and return its output."""
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=600, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, out: Path, kind: str) -> Path:
    """Build a distribution of one kind, ``wheel`` or ``sdist``, without network, and return its file."""
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source, cwd=source)
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a copy of the repository, because building writes into its folder."""
    pytest.importorskip("build", reason="distributions are built with build: pip install -e .[dev]")
    folder = tmp_path_factory.mktemp("distribution")
    (folder / "repository").mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, folder / "repository")
    for name in ("src", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, folder / "repository" / name, ignore=ignored)
    return build(folder / "repository", folder / "sdist", "sdist")


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """The wheel that is built from the repository."""
    folder = sdist.parent.parent
    return build(folder / "repository", folder / "wheel", "wheel")


def contents(wheel: Path) -> dict[str, int]:
    """Return the checksums of the files of a wheel by name, without the list of the checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist() if not info.filename.endswith("RECORD")}


def test_the_metadata_are_accepted(sdist: Path, wheel: Path) -> None:
    pytest.importorskip("twine", reason="metadata are checked with twine: pip install -e .[dev]")
    printed = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", sdist, wheel, cwd=sdist.parent)
    assert printed.count("PASSED") == 2


def test_the_wheel_contains_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "src"
    expected = {
        str(file.relative_to(package))
        for file in (package / "pour").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    names = set(contents(wheel))
    described = {name for name in names if ".dist-info/" in name}
    assert names - described == expected
    # These are no Python files, so only pyproject.toml puts them into the wheel.
    assert {Path(name).suffix for name in expected} >= {".toml", ".json", ".j2", ".css", ".js", ".mplstyle"}
    assert "pour/py.typed" in expected
    assert any(name.endswith("licenses/LICENSE") for name in described)


def test_the_source_distribution_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path / "source", filter="data")
    assert set(SOURCES) <= names
    assert not {name for name in names if name.startswith(("tests", "docs", "results"))}
    (source,) = (tmp_path / "source").iterdir()
    assert contents(build(source, tmp_path / "wheel", "wheel")) == contents(wheel)


def test_the_installed_wheel_runs_the_demo_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment, folder = tmp_path / "environment", tmp_path / "empty"
    folder.mkdir()
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    if not python.exists():
        pytest.skip("the environment has its programs elsewhere on this system")
    (site,) = environment.glob("lib/python*/site-packages")
    # Python finds the dependencies here. It ignores the .pth files in that folder, and so an editable pour.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + os.linesep)
    install = ("install", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)

    where = run(python, "-c", "import pour; print(pour.__file__, pour.__version__)", cwd=folder).split()
    assert Path(where[0]).is_relative_to(environment)
    pour = environment / "bin" / "pour"
    assert run(pour, "--version", cwd=folder).strip() == where[1]
    run(pour, "demo", "--quiet", cwd=folder)
    assert "<svg" in (folder / "runs" / "demo" / "report.html").read_text(encoding="utf-8")
    assert [entry.name for entry in folder.iterdir()] == ["runs"]
