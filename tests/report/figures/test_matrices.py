"""The figures that draw matrices: confusion and layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from figure_examples import confusion, layer_maps
from matplotlib.colors import to_hex
from sklearn.metrics import confusion_matrix as sklearn_confusion

from pour.errors import UsageError
from pour.metrics import confusion_matrix
from pour.report.figures import confusion_data, draw_confusion, draw_layers


def test_shares_against_scikit_learn_and_in_the_figure() -> None:
    generator = torch.Generator().manual_seed(0)
    labels, predicted = (torch.randint(0, 5, (200,), generator=generator) for _ in range(2))
    data = confusion_data({"original": confusion_matrix(predicted, labels, 5)}, classes=list("abcde"), forgotten=[2])
    expected = sklearn_confusion(labels, predicted, normalize="true")
    np.testing.assert_allclose(data.shares["original"], expected)
    figure = draw_confusion(data)
    np.testing.assert_allclose(np.asarray(figure.axes[0].images[0].get_array()), expected)
    gone, kept = data.accuracy("original")
    right = (labels == predicted).numpy()
    assert gone == pytest.approx(right[labels == 2].mean())
    assert kept == pytest.approx(right[labels != 2].mean())


def test_cells_hold_percents_and_the_forgotten_row_is_framed() -> None:
    figure = draw_confusion(confusion())
    before, after = figure.axes[:2]
    written = {text.get_position(): text.get_text() for text in before.texts}
    assert written[(0, 0)] == "80"
    assert written[(1, 0)] == "20"
    assert {text.get_position(): text.get_text() for text in after.texts}[(2, 1)] == "100"
    (frame,) = before.patches
    assert frame.get_y() == 0.5
    assert to_hex(frame.get_edgecolor()) == "#8b0000"
    assert to_hex(before.get_yticklabels()[1].get_color()) == "#8b0000"


def test_a_class_without_images_is_missing_not_zero() -> None:
    counts = torch.tensor([[0, 0], [1, 3]])
    data = confusion_data({"original": counts}, classes=["a", "b"], forgotten=[0])
    assert np.isnan(data.shares["original"][0]).all()
    gone, kept = data.accuracy("original")
    assert np.isnan(gone)
    assert kept == 0.75
    assert "none of forgotten" in str(draw_confusion(data).get_label())


def test_the_retrained_panel_comes_last_in_gold() -> None:
    counts = torch.eye(3, dtype=torch.int64)
    data = confusion_data({"retrained": counts, "original": counts}, classes=list("abc"), forgotten=[0])
    figure = draw_confusion(data)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["original", "retrained (reference)"]
    assert to_hex(figure.axes[1].spines["left"].get_edgecolor()) == "#c9950c"


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, "no confusion matrix"),
        ({"original": torch.eye(3, dtype=torch.int64)}, "but there are 2 class names"),
        (
            {"original": torch.eye(2, dtype=torch.int64), "unlearned": 2 * torch.eye(2, dtype=torch.int64)},
            "counts other images",
        ),
    ],
)
def test_wrong_confusions_are_told(counts: dict[str, torch.Tensor], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        confusion_data(counts, classes=["a", "b"], forgotten=[0])


def test_layer_maps_are_where_their_side_and_reference_say() -> None:
    maps = layer_maps(("stem", "one", "two"))
    figure = draw_layers(maps)
    panels = figure.axes[:4]
    for axes, entry in zip(panels, maps, strict=True):
        np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), entry.values)
        assert axes.images[0].get_clim() == (0, 1)
        assert axes.images[0].origin == "lower"
        assert ("forgotten" in axes.get_title()) == (entry.side == "forget")
    assert [to_hex(axes.spines["top"].get_edgecolor()) == "#c9950c" for axes in panels] == [False, True, False, True]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["stem", "one", "two"]
    assert panels[0].texts[1].get_text() == "0.50"


def test_without_a_retrained_model_there_is_one_column() -> None:
    maps = [entry for entry in layer_maps() if entry.reference == "original"]
    figure = draw_layers(maps)
    assert [axes.get_xlabel() for axes in figure.axes[:2]] == ["", "layers of the original"]
    assert len(figure.axes) == 3


def test_many_layers_are_named_now_and_then() -> None:
    figure = draw_layers(layer_maps([f"block {i}" for i in range(100)]))
    texts = [label.get_text() for label in figure.axes[2].get_xticklabels()]
    assert len(texts) <= 24
    assert texts[:2] == ["block 0", "block 5"]


def test_no_layers_are_told() -> None:
    with pytest.raises(UsageError, match="no layer map"):
        draw_layers([])
