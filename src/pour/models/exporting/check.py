"""Compare an exported model with the original, in a process without pour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pour import _torchvision
from pour.errors import PourError, UsageError, first_line
from pour.models.card import remove_cards
from pour.models.copy_and_swap import copy_model
from pour.models.exporting import without_pour
from pour.models.exporting.without_pour import NO_CLASS, tensors_of
from pour.models.projecting.projected_head import masked_score

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CheckError", "Reference", "check_network", "check_onnx", "check_transformers"]

_TOLERANCE = 1e-4
_ROUNDING_STEPS = 8
_SECONDS = 900


class CheckError(PourError):
    """The outputs of the export differ from the outputs of the model. The message is the end of a sentence."""


@dataclass(frozen=True)
class Reference:
    """Inputs of a network, and the output of the unlearned model for these inputs."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: object
    origin: str
    """Description of the inputs, such as the number of random images."""

    def difference(self, outputs: list[Tensor]) -> float:
        """Return the largest difference from the output, relative to its largest number.

        Raises:
            CheckError: The difference is more than rounding can explain.
        """
        expected = tensors_of(self.output)
        shapes, expected_shapes = ([tuple(tensor.shape) for tensor in part] for part in (outputs, expected))
        if shapes != expected_shapes:
            raise CheckError(f"its outputs have the shapes {shapes}, not {expected_shapes}")
        largest = 0.0
        for output, target in zip(outputs, expected, strict=True):
            if not target.is_floating_point():
                continue
            masked = target < masked_score(target.dtype) / 2
            difference = (output.double() - target.double()).masked_fill(masked, 0).abs()
            scale = float(target.double().masked_fill(masked, 0).abs().max()) or 1.0
            relative = float(difference.max()) / scale
            tolerance = max(_TOLERANCE, _ROUNDING_STEPS * torch.finfo(target.dtype).eps)
            if not relative <= tolerance or not bool((output[masked] < masked_score(target.dtype) / 4).all()):
                raise CheckError(f"its outputs differ by {relative:.1e} from those of the model")
            largest = max(largest, relative)
        return largest


def check_network(file: Path, ending: str, network: nn.Module, call: str | None, reference: Reference) -> str:
    """Load a state dict into the network's class in a process without pour. Return a sentence about the comparison.

    Args:
        file: State dict.
        ending: Ending of its name when it is complete.
        network: The network, without pour.
        call: Python expression that builds the network, or None.
        reference: Inputs and outputs.

    Raises:
        CheckError: The network cannot be loaded, or its outputs differ.
    """
    names = list(network.state_dict())
    job: dict[str, Any] = {"ending": ending, "names": names, "call": call}
    with tempfile.TemporaryDirectory(prefix="pour-export-") as name:
        folder = Path(name)
        if call is not None:
            return _result(_run(folder, file, {"kind": "call", **job}, reference), f"{call} loaded it", reference)
        why_not = _write_class(folder, network, job)
        if why_not is None:
            try:
                difference = _run(folder, file, {"kind": "class", **job}, reference)
                cls = type(network)
                where = Path(job["modules"].get(cls.__module__, cls.__module__)).name
                return _result(difference, f"{cls.__name__} of {where} loaded it with strict=True", reference)
            except _NoClassError as error:
                why_not = str(error)
        _write_graph(folder, network, reference, why_not)
        difference = _run(folder, file, {"kind": "graph", **job}, reference)
        return _result(difference, f"the graph of the network ran with its tensors, because {why_not},", reference)


def check_onnx(file: Path, reference: Reference) -> str:
    """Run an ONNX file in a process without pour. Return a sentence about the comparison."""
    with tempfile.TemporaryDirectory(prefix="pour-export-") as name:
        difference = _run(Path(name), file, {"kind": "onnx"}, reference)
    return _result(difference, "onnxruntime ran it, with two batch sizes,", reference)


def check_transformers(folder: Path, network: nn.Module, reference: Reference) -> str:
    """Load a folder with `from_pretrained` in a process without pour. Return a sentence about the comparison."""
    with tempfile.TemporaryDirectory(prefix="pour-export-") as name:
        job: dict[str, Any] = {"kind": "transformers"}
        why_not = _write_class(Path(name), type(network), job)
        if why_not is not None:
            raise CheckError(f"its class cannot be imported without pour: {why_not}")
        difference = _run(Path(name), folder, job, reference)
    return _result(difference, f"{type(network).__name__}.from_pretrained loaded it", reference)


class _NoClassError(CheckError):
    """The class of the network cannot be imported without pour."""


def _result(difference: float, how: str, reference: Reference) -> str:
    return f"In a process without pour, {how} and gave the same outputs up to {difference:.0e} on {reference.origin}."


def _run(folder: Path, file: Path, job: Mapping[str, Any], reference: Reference) -> float:
    """Run the export in a process without pour. Return the largest difference of its outputs."""
    paths = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - an empty entry is the current folder
    facts = {"modules": {}, **job, "file": str(file), "path": paths, "threads": torch.get_num_threads()}
    # A build of torchvision without its operators needs the same repair in every process.
    facts["torchvision"] = _torchvision.__file__ if "torchvision" in sys.modules else None
    (folder / "job.json").write_text(json.dumps(facts), encoding="utf-8")
    torch.save({"args": reference.args, "kwargs": dict(reference.kwargs)}, folder / "inputs.pt")
    try:
        done = subprocess.run(  # noqa: S603 - our own file
            [sys.executable, "-I", without_pour.__file__, str(folder)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"the check took more than {_SECONDS} seconds") from error
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.returncode == NO_CLASS:
        raise _NoClassError(reason)
    if done.returncode != 0:
        raise CheckError(f"it cannot be loaded without pour ({reason})")
    return reference.difference(torch.load(folder / "outputs.pt", weights_only=True))


@torch.no_grad()
def _write_class(folder: Path, content: nn.Module | type, job: dict[str, Any]) -> str | None:
    """Write a class, or a network without weights, for the other process. Add the files of the classes to `job`.

    Returns:
        Reason why the other process cannot import a class, or None.
    """
    classes = [content] if isinstance(content, type) else [type(module) for module in content.modules()]
    modules = {}
    for cls in classes:
        name = cls.__module__
        if name in ("__main__", "__mp_main__") or name.partition(".")[0] == "pour" or "<locals>" in cls.__qualname__:
            return f"its class {cls.__name__} is defined in {'a function' if '<' in cls.__qualname__ else name}"
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            modules[name] = file
    job["modules"] = modules
    if isinstance(content, nn.Module):
        content = copy_model(content)
        remove_cards(content)
        for tensor in content.state_dict().values():
            tensor.fill_(torch.nan if tensor.is_floating_point() or tensor.is_complex() else 0)
    try:
        torch.save(content, folder / "network.pickle")
    except Exception as error:  # whatever the parts of a network raise when they are pickled
        return f"it cannot be pickled ({first_line(error)})"
    return None


def _write_graph(folder: Path, network: nn.Module, reference: Reference, why: str) -> None:
    """Write the graph of a network, which other code can run without its class."""
    try:
        with torch.no_grad():
            program = torch.export.export(network, reference.args, dict(reference.kwargs), strict=False)
        torch.export.save(program, folder / "network.pt2")
    except Exception as error:  # whatever the code of a network raises when it is traced
        problem = f"The export cannot be checked without pour, because {why}, and its graph cannot be traced"
        raise UsageError(
            f"{problem} ({first_line(error)}); move the class to a module of its own, and import it from there."
        ) from error
