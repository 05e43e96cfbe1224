from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex

from pour.errors import UsageError
from pour.report.figures import draw_embedding, embedding_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pour.report.figures import EmbeddingMethod

METHODS: list[EmbeddingMethod] = ["scikit-learn"]
if importlib.util.find_spec("openTSNE") is not None:
    METHODS.append("opentsne")
NAMES = ("a", "b", "c", "d")


def clusters(n: int = 120, classes: int = 4, width: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    centers = 6 * torch.randn(classes, width, generator=generator)
    return centers[labels] + torch.randn(n, width, generator=generator), labels


def rotated(features: torch.Tensor) -> torch.Tensor:
    width = features.shape[1]
    basis = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(1))).Q
    return 3 * features @ basis + 5


def scatters(axes: Axes) -> list[np.ndarray]:
    return [np.asarray(part.get_offsets()) for part in axes.collections if isinstance(part, PathCollection)]


@pytest.mark.parametrize("method", METHODS)
def test_a_turned_network_lies_where_the_original_does(method: EmbeddingMethod) -> None:
    features, labels = clusters()
    data = embedding_data(
        {"original": features, "unlearned": rotated(features)}, labels, classes=NAMES, forgotten=[1], method=method
    )
    assert data.method == method
    original, unlearned = data.points["original"], data.points["unlearned"]
    apart = np.linalg.norm(original - unlearned, axis=1)
    middles = np.stack([original[data.labels == label].mean(axis=0) for label in range(4)])
    between = np.linalg.norm(middles[:, None] - middles[None], axis=2)[np.triu_indices(4, 1)].min()
    assert np.median(apart) < 0.15 * between


@pytest.mark.parametrize("method", METHODS)
def test_classes_stay_together_and_a_moved_class_is_seen_to_move(method: EmbeddingMethod) -> None:
    features, labels = clusters()
    moved = features.clone()
    # Class 1 goes to where class 2 is, and nothing else changes.
    moved[labels == 1] = features[labels == 2]
    data = embedding_data(
        {"original": features, "unlearned": moved}, labels, classes=NAMES, forgotten=[1], method=method
    )
    middles = {
        name: np.stack([np.median(points[data.labels == label], axis=0) for label in range(4)])
        for name, points in data.points.items()
    }
    nearest = np.linalg.norm(middles["original"] - middles["unlearned"][1], axis=1).argmin()
    assert nearest == 2
    for label in (0, 2, 3):
        assert np.linalg.norm(middles["original"] - middles["unlearned"][label], axis=1).argmin() == label


@pytest.mark.parametrize("method", METHODS)
def test_the_same_call_gives_the_same_map(method: EmbeddingMethod) -> None:
    features, labels = clusters(60)

    def again() -> np.ndarray:
        return embedding_data({"original": features}, labels, classes=NAMES, forgotten=[0], method=method).points[
            "original"
        ]

    np.testing.assert_array_equal(again(), again())


def test_the_order_of_the_models_does_not_matter() -> None:
    features, labels = clusters(40)
    both = {"original": features, "unlearned": features + 0.1 * torch.sin(features)}
    maps = [
        embedding_data(given, labels, classes=NAMES, forgotten=[1], method="scikit-learn").points
        for given in (both, dict(reversed(both.items())))
    ]
    for name in both:
        np.testing.assert_array_equal(maps[0][name], maps[1][name])


def test_many_images_are_subsampled_and_the_figure_says_so() -> None:
    n, classes = 100_000, 100
    labels = torch.arange(n) % classes
    features = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    names = [f"class {i}" for i in range(classes)]
    data = embedding_data(
        {"original": features}, labels, classes=names, forgotten=[7], limit=100, method="scikit-learn"
    )
    assert data.total == n
    assert len(data.rows) == len(set(data.rows.tolist())) == 100
    np.testing.assert_array_equal(data.labels, labels.numpy()[data.rows])
    assert data.is_forgotten.sum() == 20
    assert len(np.unique(data.labels)) >= 80
    figure = draw_embedding(data)
    assert "100 of 100,000 images, 20 of them forgotten" in " ".join(figure.get_supxlabel().split())


def test_small_data_are_taken_whole() -> None:
    features, labels = clusters(20)
    data = embedding_data({"original": features}, labels, classes=NAMES, forgotten=[1], method="scikit-learn")
    np.testing.assert_array_equal(data.rows, np.arange(20))
    assert "20 images, 5 of them forgotten" in " ".join(draw_embedding(data).get_supxlabel().split())


def test_points_are_drawn_where_they_are_the_reference_in_gold_and_last() -> None:
    features, labels = clusters(40)
    data = embedding_data(
        {"retrained": features, "original": features, "pour-d": features},
        labels,
        classes=NAMES,
        forgotten=[1],
        method="scikit-learn",
    )
    figure = draw_embedding(data)
    assert [axes.get_title() for axes in figure.axes] == ["original", "pour-d", "retrained (reference)"]
    for axes, name in zip(figure.axes, ("original", "pour-d", "retrained"), strict=True):
        kept, gone = scatters(axes)
        np.testing.assert_array_equal(kept, data.points[name][~data.is_forgotten])
        np.testing.assert_array_equal(gone, data.points[name][data.is_forgotten])
        assert to_hex(axes.collections[1].get_facecolor()[0]) == "#8b0000"
    frames = [to_hex(axes.spines["top"].get_edgecolor()) for axes in figure.axes]
    assert frames[0] == frames[1] != frames[2] == "#c9950c"
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1


def test_without_a_retrained_model_there_is_no_panel_for_it() -> None:
    features, labels = clusters(24)
    data = embedding_data(
        {"original": features, "unlearned": features}, labels, classes=NAMES, forgotten=[1], method="scikit-learn"
    )
    assert [axes.get_title() for axes in draw_embedding(data).axes] == ["original", "unlearned"]


@pytest.mark.parametrize(
    "broken",
    [torch.zeros(24, 12), torch.ones(24, 1), torch.randn(24, 30, generator=torch.Generator().manual_seed(0))],
    ids=["all zero", "one column", "wider"],
)
def test_features_without_variation_or_of_other_width_have_a_place(broken: torch.Tensor) -> None:
    features, labels = clusters(24)
    data = embedding_data(
        {"original": features, "unlearned": broken}, labels, classes=NAMES, forgotten=[1], method="scikit-learn"
    )
    assert np.isfinite(data.points["unlearned"]).all()


def test_a_single_retained_class() -> None:
    features, labels = clusters(24, classes=2)
    data = embedding_data({"original": features}, labels, classes=["a", "b"], forgotten=[1], method="scikit-learn")
    assert np.isfinite(data.points["original"]).all()
    assert draw_embedding(data).axes


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"features": {"unlearned": torch.zeros(4, 2)}}, "original's features are missing"),
        ({"features": {"original": torch.zeros(5, 2)}}, "expected one row to each of 4 images"),
        ({"features": {"original": torch.full((4, 2), torch.nan)}}, "NaN or infinite"),
        ({"labels": torch.tensor([0, 1, 2, 9])}, "but there are 3 classes"),
        ({"limit": 1}, "at least 3 images"),
        ({"method": "umap"}, "choose one of 'auto'"),
    ],
)
def test_wrong_use_is_told(changed: dict[str, object], said: str) -> None:
    given: dict[str, object] = {
        "features": {"original": torch.randn(4, 2)},
        "labels": torch.tensor([0, 1, 2, 0]),
        "classes": ["a", "b", "c"],
        "forgotten": [0],
    }
    with pytest.raises(UsageError, match=said):
        embedding_data(**{**given, **changed})  # type: ignore[arg-type]


def test_without_opentsne_scikit_learn_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    features, labels = clusters(12)
    assert embedding_data({"original": features}, labels, classes=NAMES, forgotten=[1]).method == "scikit-learn"
    with pytest.raises(UsageError, match=r"pour-unlearning\[report\]"):
        embedding_data({"original": features}, labels, classes=NAMES, forgotten=[1], method="opentsne")
