"""Named datasets, forget and retain splits, and the loader that keeps them on the device."""

from pour.data.augment import Augment, SceneAugment
from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.formats.scenes import SegmentationDataset, SegmentationSplit
from pour.data.info import DatasetInfo, RemoteFile
from pour.data.loader import DeviceLoader
from pour.data.registry import (
    DatasetStatus,
    NamedDataset,
    data_root,
    is_segmentation,
    list_datasets,
    load_dataset,
    load_segmentation,
    open_dataset,
    register_dataset,
)
from pour.data.scenes import Scenes
from pour.data.splits import Part, Splits

__all__ = [
    "Augment",
    "DatasetInfo",
    "DatasetStatus",
    "DeviceLoader",
    "ImageDataset",
    "ImageSplit",
    "NamedDataset",
    "Part",
    "RemoteFile",
    "SceneAugment",
    "Scenes",
    "SegmentationDataset",
    "SegmentationSplit",
    "Splits",
    "data_root",
    "is_segmentation",
    "list_datasets",
    "load_dataset",
    "load_segmentation",
    "open_dataset",
    "register_dataset",
]
