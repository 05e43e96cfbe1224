"""Compiling the part of a network before its head, so that methods may still look at what the head sees."""

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

# What networks call the method that goes up to the head: ours, and timm's.
_METHODS = ("features", "forward_features")
# One for each batch size and mode of BatchNorm that the methods of a process train with.
_MOST_VARIANTS = 64
# A step may hold batches of two sizes; a size that is not among so many before it is rare.
_SIZES_AT_ONCE = 2


@contextlib.contextmanager
def compiled_encoder(model: nn.Module) -> Iterator[bool]:
    """While the block runs, the method of ``model`` that goes up to its head is compiled.

    A whole compiled network would not run the hooks that tap its features. What was compiled for one network serves
    every other one of the same build in the process, so that a grid of methods pays once. The network must not be
    copied meanwhile.

    Raises:
        UsageError: there is no C++ compiler on this machine.

    Yields:
        Whether there is such a method; a network that goes to its scores in one piece runs as it is.
    """
    for module in model.modules():
        name = next((name for name in _METHODS if callable(getattr(type(module), name, None))), None)
        if name is not None:
            break
    else:
        yield False
        return
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX") or "c++", "g++", "clang++")):
        raise UsageError("Compiling needs a C++ compiler, and there is none here; install g++ or leave --compile out.")
    plain = getattr(module, name)
    # Batches of one size are many, so that code for that very size pays; not so the last batch of an epoch.
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
