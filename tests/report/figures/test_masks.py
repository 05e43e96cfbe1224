from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from pour.data import Scenes
from pour.errors import UsageError
from pour.report.figures import SegmentationData, draw_segmentation

NAMES = ("background", "cat", "sofa")
VOID = 255


def pair() -> tuple[np.ndarray, np.ndarray]:
    image = np.full((4, 8, 3), 128, np.uint8)
    mask = np.zeros((4, 8), np.uint8)
    mask[:, :4] = 1
    mask[0, :] = VOID
    return image, mask


def segmented(
    images: np.ndarray,
    truth: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    *,
    classes: tuple[str, ...] = NAMES,
    forgotten: int = 1,
) -> SegmentationData:
    scenes = Scenes(images, truth, num_classes=len(classes))
    return SegmentationData(scenes=scenes, before=before, after=after, classes=classes, forgotten=(forgotten,))


def test_shares_count_every_pixel_but_void_ones() -> None:
    image, truth = pair()
    after = np.where(truth == 1, 0, truth)
    after[1, 0] = 1
    data = segmented(image[None], truth[None], truth[None], after[None])
    np.testing.assert_allclose(data.forgotten_share(data.scenes.masks), 12 / 24)
    np.testing.assert_allclose(data.forgotten_share(data.after), 1 / 24)
    # A mask that puts the class on ignored pixels does not gain by it.
    loud = np.ones_like(truth)
    data = segmented(image[None], truth[None], loud[None], after[None])
    np.testing.assert_allclose(data.forgotten_share(data.before), 1)


def test_masks_are_laid_over_the_image_forgotten_ones_in_dark_red() -> None:
    image, truth = pair()
    after = np.where(truth == 1, 2, truth)
    figure = draw_segmentation(segmented(image[None], truth[None], truth[None], after[None]))
    plain, true, before, gone = (np.asarray(axes.images[0].get_array()) for axes in figure.axes)
    np.testing.assert_array_equal(plain, image)
    np.testing.assert_array_equal(true, before)
    expected = 0.2 * image[2, 0] / 255 + 0.8 * np.array(to_rgb("#8b0000"))
    np.testing.assert_allclose(true[2, 0] / 255, expected, atol=0.005)
    assert not np.array_equal(gone[2, 0], true[2, 0])
    np.testing.assert_array_equal(gone[2, 6], true[2, 6])
    assert [axes.get_title() for axes in figure.axes] == ["image", "truth", "before", "after"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", *(f"forgotten: {p} %" for p in ("50.0", "50.0", "0.0"))]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cat", "background", "sofa"]


def test_large_images_and_too_many_of_them() -> None:
    masks = np.zeros((8, 5, 700), np.uint8)
    figure = draw_segmentation(segmented(np.zeros((8, 5, 700, 3), np.uint8), masks, masks, masks))
    assert len(figure.axes) == 6 * 4
    assert "6 of 8 images" in figure.get_supxlabel()
    assert max(axes.images[0].get_array().shape[1] for axes in figure.axes) <= 320


def test_many_classes_in_one_image_are_not_all_named() -> None:
    truth = np.arange(240, dtype=np.uint8).reshape(1, 10, 24)
    names = tuple(f"class {i}" for i in range(240))
    images = np.zeros((1, 10, 24, 3), np.uint8)
    figure = draw_segmentation(segmented(images, truth, truth, truth, classes=names, forgotten=239))
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(texts) == 14
    assert texts[0] == "class 239"
    assert "226 more classes" in figure.get_supxlabel()


def test_masks_of_another_size_are_told() -> None:
    image, truth = pair()
    with pytest.raises(UsageError, match=r"after masks are \(1, 4, 7\), the true masks \(1, 4, 8\)"):
        segmented(image[None], truth[None], truth[None], np.zeros((1, 4, 7), np.uint8))
