"""Write a model for code without pour: the keys of its own network, ONNX, or a folder of transformers."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pour._io import atomic_path, refuse_to_overwrite
from pour.errors import PourError, UsageError, check_choice, first_line
from pour.models.card import Architecture, architecture, class_names
from pour.models.clip.zero_shot import ZeroShotClassifier
from pour.models.copy_and_swap import copy_model
from pour.models.exporting.check import CheckError, Reference, check_network, check_onnx, check_transformers
from pour.models.networks.normalize import NormalizedModel
from pour.models.networks.registry import calling
from pour.models.output import scores_of
from pour.models.projecting.fold import fold
from pour.models.projecting.project import projected_layers
from pour.models.state import checked_state, digest
from pour.models.unwrap import libraries_of, unwrap
from pour.models.verify_head import run_on

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from pour.models.head import Example

__all__ = ["Export", "Normalization", "export", "recorded_shape"]

Normalization = Literal["inside", "outside"]
"""Whether the export normalises its images, or takes normalised images."""
_STATE_ENDINGS = (".safetensors", ".pt", ".pth")
_DRAWN = 4


@dataclass(frozen=True)
class Export:
    """Result of `export`: the path, the images that the network expects, and the check."""

    path: Path
    images: str
    """Sentence about the images that the exported network expects."""
    check: str
    """Sentence about the comparison in the process without pour."""

    def __str__(self) -> str:
        return f"{self.path}: {self.images} {self.check}"


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    example: Example | None = None,
    normalization: Normalization | None = None,
    overwrite: bool = False,
) -> Export:
    """Write `model` for code without pour, and check the files in a process that cannot import pour.

    The ending of `path` sets the format:

    - `.safetensors`, `.pt` or `.pth`: the state dict of the unlearned network. A projector is folded into the head, so
      the names of the tensors are the names that the network's `load_state_dict` expects.
    - `.onnx`: a graph with any batch size. A projector that cannot be folded is a part of the graph.
    - any other name: a folder that `from_pretrained` of transformers loads.

    The other process loads the files and runs the network. Its outputs are compared with the outputs of `model`. If
    they differ, nothing is written to `path`.

    Args:
        model: Model, projected, folded or neither. It does not change.
        path: File or folder.
        example: A small batch of inputs on which outputs are compared. By default images of the size that the model
            records are drawn at random.
        normalization: For a `NormalizedModel`: "inside" exports the whole model (only for ONNX, where it is the
            default). "outside" exports the network inside, whose images must then be normalised first.
        overwrite: Replace an existing file, or the files of an existing folder.

    Raises:
        UsageError: The path exists, the model does not fit the format, its projector cannot be folded, or no size of
            images is known.
        PourError: The file cannot be written, or its outputs without pour differ from the outputs of `model`.

    Examples:
        >>> import tempfile
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = export(model, f"{folder}/m.pt", example=torch.rand(2, 1, 2, 2))
        ...     sorted(torch.load(done.path))
        ['1.bias', '1.weight']
    """
    target = Path(path)
    kind = target.suffix.lower()
    is_folder = kind not in (*_STATE_ENDINGS, ".onnx")
    network = unwrap(model)
    _check_request(network, target, normalization, overwrite=overwrite)
    whole = copy_model(network).cpu().eval()
    if isinstance(whole, NormalizedModel):
        whole.model = unwrap(whole.model)
    inputs, origin = _inputs(whole, example)
    is_inside = kind == ".onnx" and normalization != "outside"
    images, reference = _reference(whole, inputs, origin, is_onnx=kind == ".onnx", is_inside=is_inside)
    if kind == ".onnx":
        network = whole if is_inside or not isinstance(whole, NormalizedModel) else whole.model
        with _in_place(target), atomic_path(target) as temporary:
            _write_onnx(network, temporary, reference)
            return Export(target, images, check_onnx(temporary, reference))
    network = _folded(whole)
    network = network.model if isinstance(network, NormalizedModel) else network
    if is_folder:
        with _in_place(target), _staged(target) as folder:
            _write_transformers(network, folder, class_names(whole))
            return Export(target, images, check_transformers(folder, network, reference))
    recorded = architecture(whole)
    call = calling(recorded) if isinstance(recorded, Architecture) and isinstance(whole, NormalizedModel) else None
    with _in_place(target), atomic_path(target) as temporary:
        _write_state(network, temporary, kind)
        return Export(target, images, check_network(temporary, kind, network, call, reference))


def _check_request(model: nn.Module, target: Path, normalization: object, *, overwrite: bool) -> None:
    """Raise UsageError if the model does not fit the format, or if the path is taken."""
    checked_state(model)
    if normalization is not None:
        check_choice("normalization", normalization, get_args(Normalization))
    kind = target.suffix.lower()
    if kind == ".onnx":
        missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(f'ONNX needs {missing[0]}; install it with pip install "pour-unlearning[onnx]".')
    elif normalization == "inside":
        raise UsageError(
            f"Only an ONNX file can contain the normalisation of its images, and {target} is none; end the path in "
            ".onnx, or leave normalization out."
        )
    elif isinstance(model, ZeroShotClassifier):
        raise UsageError(
            "A zero-shot classifier is a class of pour, which other code does not have; export its encoder, "
            "pour.fold(model).model, which has forgotten too, or end the path in .onnx."
        )
    if kind in (*_STATE_ENDINGS, ".onnx"):
        refuse_to_overwrite(target, overwrite=overwrite)
        return
    network = model.model if isinstance(model, NormalizedModel) else model
    if "transformers" not in libraries_of(network) or not hasattr(network, "save_pretrained"):
        problem = f"A {type(network).__name__} is no model of transformers, so it cannot become the folder {target}"
        raise UsageError(f"{problem}; end the path in .safetensors, .pt or .onnx.")
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file and not a folder; choose another name.")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise UsageError(f"{target} already contains files; choose another folder, or overwrite it.")


def _folded(model: nn.Module) -> nn.Module:
    """Return the folded model. Raise UsageError, with ONNX as the remedy, if a projector cannot be folded."""
    if not projected_layers(model):
        return model
    try:
        return fold(model)
    except UsageError as error:
        raise UsageError(f"{str(error).rstrip('.')}, or export it to ONNX, which keeps the projector.") from error


def _inputs(model: nn.Module, example: Example | None) -> tuple[Example, str]:
    """Return inputs for the comparison, and their description."""
    if example is not None:
        return _on_cpu(example), f"{len(example)} given images" if isinstance(example, Tensor) else "the given inputs"
    shape = recorded_shape(model)
    if shape is None:
        raise UsageError("The model does not record the size of its images; pass example= (a small batch of images).")
    precision = next((tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()), torch.float32)
    drawn = torch.rand(_DRAWN, *shape, generator=torch.Generator().manual_seed(0)).to(precision)
    return drawn, f"{_DRAWN} random images of {' x '.join(map(str, shape))}"


def _on_cpu(example: Example) -> Example:
    if isinstance(example, Tensor):
        return example.detach().cpu()
    if isinstance(example, dict):
        return {name: _on_cpu(value) if isinstance(value, Tensor) else value for name, value in example.items()}
    return tuple(_on_cpu(value) if isinstance(value, Tensor) else value for value in example)


def recorded_shape(model: nn.Module) -> tuple[int, int, int] | None:
    """Return channels, height and width of the images of a model, or None if it does not record them."""
    recorded = architecture(model)
    options: Mapping[str, Any] = {} if recorded is None else recorded.options
    if {"in_channels", "image_size"} <= options.keys():
        return options["in_channels"], options["image_size"], options["image_size"]
    network: Any = model.model if isinstance(model, NormalizedModel) else model
    config = getattr(network, "config", None)
    side = getattr(config, "image_size", None)
    if isinstance(side, int):
        return getattr(config, "num_channels", 3), side, side
    shape: tuple[int, int, int] | None = (getattr(network, "pretrained_cfg", None) or {}).get("input_size")
    return shape


def _reference(
    model: nn.Module, inputs: Example, origin: str, *, is_onnx: bool, is_inside: bool
) -> tuple[str, Reference]:
    """Return a sentence about the expected images, and the inputs and outputs of the exported part of the model."""
    if isinstance(model, NormalizedModel) and not is_inside:
        calls: list[tuple[tuple[Any, ...], dict[str, Any], object]] = []
        hook = model.model.register_forward_hook(lambda _, *call: calls.append(call), with_kwargs=True)
        try:
            run_on(model, inputs)
        finally:
            hook.remove()
        args, kwargs, output = calls[-1]
        output = scores_of(output) if is_onnx else output
        mean, std = (values.flatten().tolist() for values in (model.normalize.mean, model.normalize.std))
        mean, std = ([round(value, 6) for value in values] for values in (mean, std))
        size = f" and resized to {model.resize} x {model.resize} pixels" if model.resize else ""
        images = f"Images in [0, 1] must be normalised by mean {mean} and deviation {std}{size} first."
        return images, Reference(args, kwargs, output, origin)
    output = scores_of(run_on(model, inputs)) if is_onnx else run_on(model, inputs)
    args = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, dict) else (inputs,)
    kwargs = inputs if isinstance(inputs, dict) else {}
    images = (
        "Images in [0, 1] are normalised inside."
        if _normalises(model)
        else "The images are the same as for the model itself."
    )
    return images, Reference(args, kwargs, output, origin)


def _normalises(model: nn.Module) -> bool:
    return any(name.rpartition(".")[2] == "normalize" for name, _ in model.named_children())


@contextlib.contextmanager
def _in_place(target: Path) -> Iterator[None]:
    """Turn a CheckError into a PourError whose message is a sentence about `target`."""
    try:
        yield
    except CheckError as error:
        raise PourError(f"{target} was not written, because {error}.") from error


@contextlib.contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """Yield a new folder, whose files are moved to `target` if the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=".part", dir=target.parent) as name:
        staged = Path(name) / target.name
        yield staged
        if not target.exists():
            staged.rename(target)
            return
        for file in staged.iterdir():
            file.replace(target / file.name)


def _write_state(network: nn.Module, path: Path, kind: str) -> None:
    """Write the state dict of `network`, and read it again. Raise CheckError if it contains other tensors."""
    # Tied tensors are written once for each name, because load_state_dict asks for every name.
    state = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
    if kind == ".safetensors":
        save_file(state, path, metadata={"format": "pt"})
    else:
        torch.save(state, path)
    written = load_file(path) if kind == ".safetensors" else torch.load(path, weights_only=True)
    if digest(written) != digest(state):
        raise CheckError("the written tensors differ from the tensors of the model")


class _Scores(nn.Module):
    """A network that returns its scores alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return scores_of(self.network(images))


def _write_onnx(network: nn.Module, path: Path, reference: Reference) -> None:
    """Write the scores of `network` as an ONNX graph with any batch size."""
    images = reference.args[0] if reference.args else None
    if len(reference.args) != 1 or reference.kwargs or not isinstance(images, Tensor):
        raise UsageError("An ONNX file takes one tensor of images; pass such a tensor as the example.")
    # A batch of one image would fix the size of the batch.
    images = torch.cat([images, images]) if len(images) == 1 else images
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _Scores(network),
                (images,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                input_names=["images"],
                output_names=["scores"],
                verbose=False,
            )
        if program is None:
            raise RuntimeError("PyTorch returned no graph")
        program.save(path, external_data=False)
    except Exception as error:  # whatever the code of a network raises when it is traced
        advice = "export the network inside, with normalization outside" if isinstance(network, NormalizedModel) else ""
        problem = f"PyTorch cannot write a {type(network).__name__} as ONNX ({first_line(error)})"
        raise UsageError(f"{problem}; {advice or 'end the path in .safetensors or .pt'}.") from error


def _write_transformers(network: nn.Module, folder: Path, names: Sequence[str] | None) -> None:
    """Write a model of transformers, with its class names in the configuration."""
    if names is not None:
        network.config.id2label = dict(enumerate(names))  # type: ignore[union-attr]
        network.config.label2id = {name: index for index, name in enumerate(names)}  # type: ignore[union-attr]
    logging = importlib.import_module("transformers.utils.logging")
    has_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        network.save_pretrained(folder)  # type: ignore[operator]
    finally:
        if has_bar:
            logging.enable_progress_bar()
