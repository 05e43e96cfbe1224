"""Write what pour computes and prints, to compare two commits on one machine.

    python scripts/goldens.py OUT [--root DIR]

Run it once per commit, with ``PYTHONPATH`` set to that commit's ``src``, and compare the folders with ``diff -r``. OUT
gets the digest of every method's digits student, an audit as JSON, the text of its page, the tables of the stored
grids in every format, the help of every command, and the names of all tests. Times and dates are removed.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    "", "demo", "train", "unlearn", "audit", "tune", "bench", "table", "study", "view", "history", "methods",
    "datasets", "models", "weights", "texts", "metrics",
)  # fmt: skip
STORES = (
    "cifar10", "cifar10-batchnorm", "cifar10-earlier", "cifar10-small", "cifar100", "cifar100-fast", "pathmnist",
    "camvid", "zeroshot",
)  # fmt: skip
FORMATS = ("markdown", "latex", "csv", "rich")
VARIABLE = re.compile(r"\d+(\.\d+)?\s?(s|ms|seconds|minutes)\b|\d{4}-\d\d-\d\d|\b[0-9a-f]{7}\b")


def call(*words: str | Path, cwd: Path, check: bool = True) -> str:
    """Return what ``pour`` prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pour", *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode and check:
        return f"exit code {done.returncode}\n{done.stderr}"
    return done.stdout


def digest(path: Path) -> str:
    """Return the SHA-256 of a model file's tensors, in the order of their names."""
    total = hashlib.sha256()
    with safe_open(path, "pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name).contiguous()
            total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            total.update(tensor.numpy().tobytes())
    return total.hexdigest()


def stable(value: object) -> object:
    """Return ``value`` without times, dates, versions and commits."""
    if isinstance(value, dict):
        return {key: stable(item) for key, item in value.items() if key not in ("seconds", "date", "commit", "version")}
    return [stable(item) for item in value] if isinstance(value, list) else value


def page_text(path: Path) -> str:
    """Return the words of a page, one line per element."""
    text = re.sub(r"<(style|script|svg|img)\b.*?(</\1>|>)", "", path.read_text("utf-8"), flags=re.S)
    lines = (html.unescape(line).strip() for line in re.sub(r"<[^>]+>", "\n", text).splitlines())
    return VARIABLE.sub("#", "\n".join(line for line in lines if line)) + "\n"


def main() -> None:
    """Write the goldens of one tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT, help="tree whose tests and results are read")
    args = parser.parse_args()
    out, root = args.out.resolve(), args.root.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for command in COMMANDS:
        (out / f"help-{command or 'pour'}.txt").write_text(call(*filter(None, [command]), "--help", cwd=out))
    for store in STORES:
        for format_ in FORMATS:
            folder = root / "results" / store
            text = call("table", folder if folder.is_dir() else f"{folder}.json.gz", "--format", format_, cwd=out)
            (out / f"table-{store.replace('/', '-')}-{format_}.txt").write_text(text.replace(str(root), "ROOT"))
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q"], cwd=root, capture_output=True, text=True, check=False
    )
    (out / "tests.txt").write_text("\n".join(sorted(line for line in listed.stdout.splitlines() if "::" in line)))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        common = ("--device", "cpu", "--quiet")
        call("train", "--data", "digits", "--out", "original.safetensors", *common, cwd=work)
        call("train", "--data", "digits", "--without", "8", "--out", "retrained.safetensors", *common, cwd=work)
        names = subprocess.run(
            [sys.executable, "-c", "import pour; print(*(info.name for info in pour.list_methods()))"],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        lines = [f"original {digest(work / 'original.safetensors')}"]
        for method in sorted(names):
            target = work / f"{method}.safetensors"
            words = ("--method", method, "--forget", "8", "--data", "digits", "--recipe", "digits", "--seed", "1")
            said = call("unlearn", "original.safetensors", *words, "--out", target.name, *common, cwd=work)
            lines.append(f"{method} {digest(target) if target.exists() else said.strip()}")
        (out / "methods.txt").write_text("\n".join(lines) + "\n")
        for method in ("pour-p", "pour-d"):
            words = ("--retrained", "retrained.safetensors", "--forget", "8", "--data", "digits")
            models = ("original.safetensors", f"{method}.safetensors")
            said = call("audit", *models, *words, "--report", f"page-{method}.html", *common, cwd=work)
            if not (work / f"page-{method}.html").exists():
                (out / f"audit-{method}.txt").write_text(said)
                continue
            report = stable(json.loads((work / f"page-{method}.json").read_text("utf-8")))
            (out / f"audit-{method}.json").write_text(json.dumps(report, indent=1, sort_keys=True))
            (out / f"page-{method}.txt").write_text(page_text(work / f"page-{method}.html"))


if __name__ == "__main__":
    main()
