"""Compile the part of a network before its head, so that methods can still read the features of the head."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

__all__ = ["compiled_encoder"]

# Name of the method that computes the features, in networks of pour and of timm.
_METHODS = ("features", "forward_features")
# One variant per batch size and BatchNorm mode that the methods of a process train with.
_MOST_VARIANTS = 64
# A step can have batches of two sizes. A batch size is rare if none of the previous two batches had it.
_SIZES_AT_ONCE = 2


@contextlib.contextmanager
def compiled_encoder(model: nn.Module) -> Iterator[bool]:
    """Compile the method of `model` that computes the features of the head, inside the block.

    A whole compiled network would not run the hooks that read its features. Networks of one architecture share the
    compiled code in a process, so that a grid of methods compiles once. The network must not be copied in the block.

    Raises:
        UsageError: This machine has no C++ compiler.

    Yields:
        Whether the network has such a method. A network without it runs uncompiled.
    """
    for module in model.modules():
        name = next((name for name in _METHODS if callable(getattr(type(module), name, None))), None)
        if name is not None:
            break
    else:
        yield False
        return
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX") or "c++", "g++", "clang++")):
        raise UsageError("Compiling needs a C++ compiler, which is missing; install g++ or leave compile=True out.")
    plain = getattr(module, name)
    # Code for one batch size is worth its compilation, because most batches have this size. The last batch has not.
    compiled = torch.compile(plain, dynamic=False)
    recent: deque[torch.Size] = deque(maxlen=_SIZES_AT_ONCE)

    def encode(images: Tensor, *rest: Any, **options: Any) -> Any:
        often = images.shape in recent
        recent.append(images.shape)
        return (compiled if often else plain)(images, *rest, **options)

    setattr(module, name, encode)
    try:
        with torch._dynamo.config.patch(recompile_limit=_MOST_VARIANTS):
            yield True
    finally:
        delattr(module, name)
