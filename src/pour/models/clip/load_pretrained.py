"""Opening a pretrained dual encoder with both of its towers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pour._torchvision import torchvision_works
from pour.errors import UsageError
from pour.models.clip.dual_encoder import find_image_projection, text_encoder
from pour.models.networks.libraries import installed

if TYPE_CHECKING:
    from torch import nn

    from pour.models.clip.texts import TextEncoder

__all__ = ["load_dual"]


def load_dual(name: str) -> tuple[nn.Module, TextEncoder]:
    """Open a dual encoder with its weights, and its text tower as a text encoder.

    Args:
        name: ``hf:FOLDER`` or ``hf:NAME`` of the hub, for CLIP and SigLIP models of transformers; or
            ``open_clip:ARCH@WEIGHTS``, where WEIGHTS is a file or a tag that open_clip knows.
    """
    library, _, rest = name.partition(":")
    if library not in ("hf", "open_clip") or not rest:
        raise UsageError(f"{name!r} names no dual encoder; give hf:FOLDER, hf:NAME or open_clip:ARCH@WEIGHTS.")
    if not installed(library):
        package, extra = ("transformers", "hf") if library == "hf" else ("open_clip_torch", "open-clip")
        raise UsageError(f'{name} needs {package}; install it with pip install "pour-unlearning[{extra}]".')
    # Both import torchvision, which needs mending first where it does not fit torch.
    torchvision_works()
    model, tokenizer = _transformers(rest) if library == "hf" else _open_clip(rest)
    if find_image_projection(model) is None:
        raise UsageError(
            f"{name} is a {type(model).__name__}, not a dual encoder that pour knows; give CLIP or SigLIP."
        )
    return model.eval(), text_encoder(model, tokenizer)


def _transformers(name: str) -> tuple[nn.Module, Any]:
    transformers = importlib.import_module("transformers")
    try:
        # A later version opens a file in the precision that it was stored in.
        model = transformers.AutoModel.from_pretrained(name).float()
        return model, transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"transformers cannot open {name!r} ({reason}); give a folder with the model and its tokenizer, or a name "
            "of the hub (with a network connection)."
        ) from error


def _open_clip(name: str) -> tuple[nn.Module, Any]:
    open_clip = importlib.import_module("open_clip")
    arch, _, weights = name.partition("@")
    if arch not in open_clip.list_models():
        raise UsageError(f"open_clip has no architecture {arch!r}; see open_clip.list_models().")
    try:
        return open_clip.create_model(arch, pretrained=weights or None), open_clip.get_tokenizer(arch)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"open_clip cannot open {name!r} ({reason}); give a file of weights or a tag it knows."
        ) from error
