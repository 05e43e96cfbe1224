"""Moving the results of a store between machines as one tar file, without its models."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from pour._io import atomic_path, refuse_to_overwrite, write_text
from pour.bench.comparable import check_unmixed
from pour.bench.store import cell_files, damaged_cells, read_store, unseal
from pour.bench.store_identity import EXPERIMENT_FILE, check_folder, read_experiment
from pour.errors import UsageError

if TYPE_CHECKING:
    from pour.bench.store import Cell

__all__ = ["export_store", "import_store"]

_MEMBER = re.compile(r"cells/forget-\d+(-\d+)*/seed-\d+/[\w.+-]+\.json")
_BESIDE = (".run.json", ".report.json")
# A cell with its report is some 50 kB; more than this is no result of ours.
_LARGEST = 16 * 2**20


def export_store(out: str | Path, tar: str | Path, *, overwrite: bool = False, experiment: str | None = None) -> int:
    """Write all cells of a store, with what lies beside them, to a tar file; returns how many cells.

    Models and cached features stay: what can be trained again is not a result.

    Args:
        out: the store.
        tar: the file to write.
        overwrite: replace a file that is there.
        experiment: whose results these must be; by default any.
    """
    folder, target = Path(out), Path(tar)
    refuse_to_overwrite(target, overwrite=overwrite)
    cells = read_store(folder)
    if not cells:
        raise UsageError(f"{folder} holds no whole cell to export; run pour bench --out {folder} first.")
    if damaged := damaged_cells(folder):
        raise UsageError(
            f"{folder} has damaged cells ({len(damaged)}), such as {damaged[0]}; run pour bench again to make them, or "
            "remove them."
        )
    known = read_experiment(folder)
    if experiment is not None and known is not None and known["name"] != experiment:
        raise UsageError(f"{folder} holds results of {known['name']}, not of {experiment}.")
    files = [folder / EXPERIMENT_FILE]
    for cell in cells:
        path = folder / cell.key.path
        files += [path, *(path.with_suffix(suffix) for suffix in _BESIDE)]
    with atomic_path(target) as temporary, tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(file for file in files if file.is_file()):
            content = file.read_bytes()
            # Only name and content: the same results make the same archive, whoever exports them.
            member = tarfile.TarInfo(file.relative_to(folder).as_posix())
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return len(cells)


def import_store(tar: str | Path, out: str | Path, *, overwrite: bool = False, experiment: str | None = None) -> int:
    """Take the cells of an exported store into another; returns how many were new.

    Everything is checked before anything is written: names that lead out of the store, links, damaged cells, cells
    that differ from those in the store, and cells of one seed that belong to different models are refused.

    Args:
        tar: a file of :func:`export_store`.
        out: the store, made where there is none.
        overwrite: let cells replace different ones of the same place.
        experiment: whose results these must be; by default those of the store, or any where there is none.
    """
    source, folder = Path(tar), Path(out)
    check_folder(folder.resolve())
    texts = _members(source)
    cells = _cells(texts, source)
    _check_same_experiment(texts, folder, source, experiment)
    known = {cell.key: cell for cell in read_store(folder)} if cell_files(folder) else {}
    fresh = {name: cell for name, cell in cells.items() if known.get(cell.key) != cell}
    clashes = sorted(name for name, cell in fresh.items() if cell.key in known)
    if clashes and not overwrite:
        raise UsageError(
            f"{len(clashes)} cells of {source} differ from those in {folder}, {clashes[0]} among them; pass "
            "overwrite=True (--overwrite) to replace them, or give another folder."
        )
    together = {**known, **{cell.key: cell for cell in fresh.values()}}
    check_unmixed(together.values(), remedy="give another folder for them" if known else None)
    if EXPERIMENT_FILE in texts and read_experiment(folder) is None:
        write_text(folder / EXPERIMENT_FILE, texts[EXPERIMENT_FILE])
    for name in fresh:
        for suffix in _BESIDE:
            beside = name.removesuffix(".json") + suffix
            if beside in texts:
                write_text(folder / beside, texts[beside])
            else:
                # What the replaced cell had beside it is not this one's.
                (folder / beside).unlink(missing_ok=True)
        write_text(folder / name, texts[name])
    return len(fresh)


def _members(source: Path) -> dict[str, str]:
    """The texts in the archive by name; raises for anything that export does not write."""
    texts: dict[str, str] = {}
    try:
        with tarfile.open(source, "r:") as archive:
            for member in archive:
                allowed = member.name == EXPERIMENT_FILE or _MEMBER.fullmatch(member.name)
                if not member.isreg() or not allowed:
                    raise UsageError(f"{source} holds {member.name!r}, which is no result of a store; it is refused.")
                if member.size > _LARGEST:
                    raise UsageError(f"{member.name!r} in {source} has {member.size} bytes, too many for a result.")
                stream = archive.extractfile(member)
                texts[member.name] = "" if stream is None else stream.read().decode("utf-8")
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        raise UsageError(f"{source} cannot be read as an exported store ({error}).") from error
    return texts


def _cells(texts: dict[str, str], source: Path) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name, text in texts.items():
        if name == EXPERIMENT_FILE or name.endswith(_BESIDE):
            continue
        cell = unseal(text)
        if cell is None or cell.key.path.as_posix() != name:
            raise UsageError(f"{name!r} in {source} is damaged; export the store again.")
        cells[name] = cell
    if not cells:
        raise UsageError(f"{source} holds no cell; give a file of pour bench --export.")
    return cells


def _check_same_experiment(texts: dict[str, str], folder: Path, source: Path, expected: str | None) -> None:
    known = read_experiment(folder)
    if EXPERIMENT_FILE not in texts:
        if expected is not None:
            raise UsageError(
                f"{source} does not say whose results it holds; export a store that has {EXPERIMENT_FILE}."
            )
        return
    try:
        name = json.loads(texts[EXPERIMENT_FILE])["name"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{EXPERIMENT_FILE} in {source} is damaged; export the store again.") from error
    if expected is not None and name != expected:
        raise UsageError(f"{source} holds results of {name}, not of {expected}; give the file of that experiment.")
    if known is not None and name != known["name"]:
        raise UsageError(f"{folder} holds results of {known['name']}, and {source} those of {name}.")
