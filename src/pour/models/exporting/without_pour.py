"""Load an exported model and run it, in a process that cannot import pour. This file imports nothing of pour.

`python -I without_pour.py FOLDER` reads `job.json` and the inputs in FOLDER, and writes the outputs there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.util
import json
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NO_CLASS", "tensors_of"]

NO_CLASS = 3
"""Exit code if the class of the network cannot be imported."""


class _Refusal(importlib.abc.MetaPathFinder):
    """Finder that refuses the package pour."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "pour":
            raise ImportError(f"{name} cannot be imported, because an export must work without pour")


def _refuse_pour() -> None:
    sys.meta_path.insert(0, _Refusal())


def tensors_of(output: object) -> list[Tensor]:
    """Return all tensors in the output of a network, in their order."""
    if isinstance(output, Tensor):
        return [output]
    if dataclasses.is_dataclass(output) and not isinstance(output, Mapping | type):
        output = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    if isinstance(output, Mapping):
        output = list(output.values())
    return [tensor for part in output for tensor in tensors_of(part)] if isinstance(output, list | tuple) else []


def _main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    _refuse_pour()
    sys.path.extend(entry for entry in job["path"] if entry not in sys.path)
    torch.set_num_threads(job["threads"])
    if job["torchvision"] is not None:
        _load("torchvision_repair", job["torchvision"]).torchvision_works()
    inputs = torch.load(folder / "inputs.pt", weights_only=True)
    outputs = _run_onnx(job["file"], inputs["args"]) if job["kind"] == "onnx" else _run(folder, job, inputs)
    if "pour" in sys.modules:
        raise ImportError("pour was imported, although the export must work without it")
    torch.save([tensor.clone() for tensor in outputs], folder / "outputs.pt")


def _run(folder: Path, job: dict[str, Any], inputs: dict[str, Any]) -> list[Tensor]:
    network = _loaded(folder, job)
    with contextlib.suppress(NotImplementedError):  # a graph is in evaluation mode already
        network.eval()
    with torch.no_grad():
        return tensors_of(network(*inputs["args"], **inputs["kwargs"]))


def _loaded(folder: Path, job: dict[str, Any]) -> nn.Module:
    """Return the network with the weights of the export."""
    file, kind = job["file"], job["kind"]
    if kind == "transformers":
        network, info = _class_of(folder, job).from_pretrained(file, output_loading_info=True, local_files_only=True)
        wrong = {name: sorted(map(str, keys)) for name, keys in info.items() if keys}
        if wrong:
            raise RuntimeError(f"from_pretrained reports {wrong}")
        return network  # type: ignore[no-any-return]
    if job["ending"] == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(file)
    else:
        state = torch.load(file, weights_only=True)
    if kind == "call":
        library = importlib.import_module(job["call"].partition(".")[0])
        network = eval(job["call"], {library.__name__: library})  # noqa: S307 - written by pour
    elif kind == "class":
        network = _class_of(folder, job)
    else:
        network = torch.export.load(folder / "network.pt2").module()
        differing = set(job["names"]) ^ state.keys() | dict(network.named_parameters()).keys() - state.keys()
        if differing:
            raise RuntimeError(f"the file does not fit the network: {sorted(differing)}")
    network.load_state_dict(state, strict=kind != "graph")
    return network  # type: ignore[no-any-return]


def _class_of(folder: Path, job: dict[str, Any]) -> Any:
    """Return the content of `network.pickle`: a network without weights, or a class. Exit if a class is missing."""
    try:
        for name, file in job["modules"].items():
            try:
                imported_file = importlib.import_module(name).__file__
            except ImportError:
                imported_file = None
            if imported_file != file:
                _load(name, file)
        # Unpickling is safe, because pour has just written this file into a new temporary folder.
        return torch.load(folder / "network.pickle", weights_only=False)
    except (ImportError, AttributeError, pickle.UnpicklingError) as error:
        print(error, file=sys.stderr)
        sys.exit(NO_CLASS)


def _load(name: str, file: str) -> Any:
    """Import a file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_onnx(file: str, args: tuple[Tensor, ...]) -> list[Tensor]:
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    whole = session.run(None, {name: value.numpy() for name, value in zip(names, args, strict=True)})
    # Another number of images shows that the batch size is free.
    session.run(None, {name: torch.cat([value, value[:1]]).numpy() for name, value in zip(names, args, strict=True)})
    return [torch.from_numpy(output) for output in whole]


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
