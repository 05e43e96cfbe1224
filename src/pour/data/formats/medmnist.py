"""The two-dimensional MedMNIST sets: small medical images in one ``.npz`` file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.formats.mosaic import is_mosaic, read_class_names, read_mosaic
from pour.data.formats.npz import read_npz_splits
from pour.data.info import DatasetInfo, RemoteFile
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MEDMNIST", "MEDMNIST_CLASSES", "find_medmnist", "read_medmnist"]

_ORGANS = (
    "bladder",
    "femur-left",
    "femur-right",
    "heart",
    "kidney-left",
    "kidney-right",
    "liver",
    "lung-left",
    "lung-right",
    "pancreas",
    "spleen",
)

# Official names, with a slash where they have a comma, so that a list of classes can be written with commas.
MEDMNIST_CLASSES: dict[str, tuple[str, ...]] = {
    "pathmnist": (
        "adipose",
        "background",
        "debris",
        "lymphocytes",
        "mucus",
        "smooth muscle",
        "normal colon mucosa",
        "cancer-associated stroma",
        "colorectal adenocarcinoma epithelium",
    ),
    "dermamnist": (
        "actinic keratoses and intraepithelial carcinoma",
        "basal cell carcinoma",
        "benign keratosis-like lesions",
        "dermatofibroma",
        "melanoma",
        "melanocytic nevi",
        "vascular lesions",
    ),
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    "pneumoniamnist": ("normal", "pneumonia"),
    "retinamnist": ("0", "1", "2", "3", "4"),
    "breastmnist": ("malignant", "normal / benign"),
    "bloodmnist": (
        "basophil",
        "eosinophil",
        "erythroblast",
        "immature granulocytes",
        "lymphocyte",
        "monocyte",
        "neutrophil",
        "platelet",
    ),
    "tissuemnist": (
        "Collecting Duct / Connecting Tubule",
        "Distal Convoluted Tubule",
        "Glomerular endothelial cells",
        "Interstitial endothelial cells",
        "Leukocytes",
        "Podocytes",
        "Proximal Tubule Segments",
        "Thick Ascending Limb",
    ),
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
}

_TITLES_AND_MD5 = {
    "pathmnist": ("PathMNIST", "a8b06965200029087d5bd730944a56c1"),
    "dermamnist": ("DermaMNIST", "0744692d530f8e62ec473284d019b0c7"),
    "octmnist": ("OCTMNIST", "c68d92d5b585d8d81f7112f81e2d0842"),
    "pneumoniamnist": ("PneumoniaMNIST", "28209eda62fecd6e6a2d98b1501bb15f"),
    "retinamnist": ("RetinaMNIST", "bd4c0672f1bba3e3a89f0e4e876791e4"),
    "breastmnist": ("BreastMNIST", "750601b1f35ba3300ea97c75c52ff8f6"),
    "bloodmnist": ("BloodMNIST", "7053d0359d879ad8a5505303e11de1dc"),
    "tissuemnist": ("TissueMNIST", "ebe78ee8b05294063de985d821c1c34b"),
    "organamnist": ("OrganAMNIST", "68e3f8846a6bd62f0c9bf841c0d9eacc"),
    "organcmnist": ("OrganCMNIST", "b9ceb9546e10131b32923c5bbeaea2b1"),
    "organsmnist": ("OrganSMNIST", "9ab87b696fb54e2a387ebe992d6ed5f1"),
}


def _info(name: str, title: str, md5: str) -> DatasetInfo:
    url = f"https://zenodo.org/records/10519652/files/{name}.npz?download=1"
    return DatasetInfo(
        name=name,
        title=title,
        licence="CC BY-NC 4.0" if name == "dermamnist" else "CC BY 4.0",
        citation="J. Yang et al.: MedMNIST v2 - A large-scale lightweight benchmark for 2D and 3D biomedical image "
        "classification. Scientific Data 10, 41, 2023.",
        homepage="https://medmnist.com",
        files=(RemoteFile(url=url, filename=f"{name}.npz", checksum=f"md5:{md5}"),),
        needs="one .npz file",
    )


MEDMNIST: dict[str, DatasetInfo] = {name: _info(name, *facts) for name, facts in _TITLES_AND_MD5.items()}


def find_medmnist(root: Path, name: str) -> Path | None:
    """Return the ``.npz`` file or the folder of mosaics of the set ``name`` under ``root``."""
    file = next((path for path in (root / f"{name}.npz", root / name / f"{name}.npz") if path.is_file()), None)
    return file or (root / name if is_mosaic(root / name) else None)


def read_medmnist(path: Path, name: str) -> ImageDataset:
    """Return the set ``name`` stored at ``path``.

    PathMNIST's ``val`` comes from the clinics of the training images and is the test split here; its ``test`` comes
    from another clinic and is the split ``external``. In the other sets ``test`` is the test split and ``val`` is kept
    under its own name.
    """
    if path.is_dir():
        splits, stored = read_mosaic(path), read_class_names(path)
    else:
        splits, stored = read_npz_splits(path)
    return ImageDataset(
        name=name,
        classes=stored or MEDMNIST_CLASSES[name],
        splits=_external_apart(path, splits) if name == "pathmnist" else splits,
        info=MEDMNIST[name],
    )


def _external_apart(path: Path, splits: dict[str, ImageSplit]) -> dict[str, ImageSplit]:
    for needed in ("val", "test"):
        if needed not in splits:
            raise UsageError(f"{path} has no {needed} images; PathMNIST has train, val and test.")
    return {"train": splits["train"], "test": splits["val"], "external": splits["test"]}
