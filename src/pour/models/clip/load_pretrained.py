"""Load a pretrained dual encoder: the image tower and the text tower."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pour._torchvision import torchvision_works
from pour.errors import UsageError, first_line
from pour.models.clip.dual_encoder import find_image_projection, text_encoder
from pour.models.networks.libraries import installed

if TYPE_CHECKING:
    from torch import nn

    from pour.models.clip.texts import TextEncoder

__all__ = ["load_dual"]


def load_dual(name: str) -> tuple[nn.Module, TextEncoder]:
    """Return a dual encoder with its weights, and a text encoder that uses its text tower.

    Args:
        name: `hf:FOLDER` or `hf:NAME` of the hub, for CLIP and SigLIP models of transformers; or
            `open_clip:ARCH@WEIGHTS`, with a file or a tag of open_clip as WEIGHTS.

    Raises:
        UsageError: The library is not installed, or cannot open such a dual encoder.
    """
    library, _, rest = name.partition(":")
    if library not in ("hf", "open_clip") or not rest:
        raise UsageError(f"{name!r} names no dual encoder; pass hf:FOLDER, hf:NAME or open_clip:ARCH@WEIGHTS.")
    if not installed(library):
        package, extra = ("transformers", "hf") if library == "hf" else ("open_clip_torch", "open-clip")
        raise UsageError(f'{name} needs {package}; install it with pip install "pour-unlearning[{extra}]".')
    # Both import torchvision, which does not fit every build of torch.
    torchvision_works()
    try:
        model, tokenizer = _transformers(rest) if library == "hf" else _open_clip(rest)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"The library cannot open {name} ({first_line(error)}); pass a folder with the model and its tokenizer, a "
            "file of weights, or a name that the library knows (with a network connection)."
        ) from error
    if find_image_projection(model) is None:
        raise UsageError(
            f"{name} is a {type(model).__name__}, not a dual encoder that pour knows; pass CLIP or SigLIP."
        )
    return model.eval(), text_encoder(model, tokenizer)


def _transformers(name: str) -> tuple[nn.Module, Any]:
    transformers = importlib.import_module("transformers")
    # Newer versions of transformers load a file in its stored precision.
    model = transformers.AutoModel.from_pretrained(name).float()
    return model, transformers.AutoTokenizer.from_pretrained(name)


def _open_clip(name: str) -> tuple[nn.Module, Any]:
    open_clip = importlib.import_module("open_clip")
    arch, _, weights = name.partition("@")
    if arch not in open_clip.list_models():
        raise UsageError(f"open_clip has no architecture {arch!r}; see open_clip.list_models().")
    return open_clip.create_model(arch, pretrained=weights or None), open_clip.get_tokenizer(arch)
