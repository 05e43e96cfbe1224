"""Import torchvision even if its compiled operators do not match the installed torch.

The import of a CUDA build of torchvision with a CPU build of torch raises `operator torchvision::nms does not exist`.
All packages that import torchvision fail too: torchmetrics, timm, transformers. pour does not call these operators, so
a declaration of their schemas is enough for the import.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys

import torch

__all__ = ["torchvision_works"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept_alive: list[torch.library.Library] = []


@functools.cache
def torchvision_works() -> bool:
    """Import torchvision, and declare its operators if they are missing. Return whether it can be used."""
    if importlib.util.find_spec("torchvision") is None:
        return False
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, ImportError) as error:
        if "torchvision::" not in str(error):
            return False
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for schema in _SCHEMAS:
            if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
                library.define(schema)  # type: ignore[no-untyped-call]
        _kept_alive.append(library)
        importlib.import_module("torchvision")
    return True
