"""pour unlearn, bench and table for segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.data.formats.scenes import SegmentationDataset
    from pour.unlearning import Method

__all__ = ["request_scenes"]


def request_scenes(
    data: str, root: Path | None, forget: Sequence[str], method: Method
) -> tuple[SegmentationDataset, pour.ForgetRequest]:
    """The request to forget classes of a segmentation dataset; its images are read only where the method needs them."""
    from pour.data import Scenes, load_segmentation

    dataset = load_segmentation(data, root)
    classes = dataset.indices(forget)
    if not method.needs:
        return dataset, pour.ForgetRequest(classes=list(classes))
    return dataset, pour.ForgetRequest.of_scenes(Scenes.of(dataset.splits["train"]), classes)
