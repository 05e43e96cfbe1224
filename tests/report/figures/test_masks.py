from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from pour.errors import UsageError
from pour.report.figures import draw_segmentation, segmentation_data

NAMES = ("background", "cat", "sofa")
VOID = 255


def pair() -> tuple[np.ndarray, np.ndarray]:
    image = np.full((4, 8, 3), 128, np.uint8)
    mask = np.zeros((4, 8), np.int64)
    mask[:, :4] = 1
    mask[0, :] = VOID
    return image, mask


def test_shares_count_every_pixel_but_void_ones() -> None:
    image, truth = pair()
    after = np.where(truth == 1, 0, truth)
    after[1, 0] = 1
    data = segmentation_data([image], [truth], [truth], [after], classes=NAMES, forgotten=[1], void=VOID)
    np.testing.assert_allclose(data.forgotten_share(data.truth), 12 / 24)
    np.testing.assert_allclose(data.forgotten_share(data.after), 1 / 24)
    # A mask that puts the class where nothing counts does not gain by it.
    loud = np.ones_like(truth)
    data = segmentation_data([image], [truth], [loud], [after], classes=NAMES, forgotten=[1], void=VOID)
    np.testing.assert_allclose(data.forgotten_share(data.before), 1)


def test_masks_are_laid_over_the_image_forgotten_ones_in_dark_red() -> None:
    image, truth = pair()
    after = np.where(truth == 1, 2, truth)
    data = segmentation_data([image], [truth], [truth], [after], classes=NAMES, forgotten=[1], void=VOID)
    figure = draw_segmentation(data)
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


def test_images_of_several_sizes_and_too_many_of_them() -> None:
    images = [np.zeros((5 + i, 700, 3), np.uint8) for i in range(8)]
    masks = [np.zeros((5 + i, 700), np.int64) for i in range(8)]
    data = segmentation_data(images, masks, masks, masks, classes=NAMES, forgotten=[1])
    figure = draw_segmentation(data)
    assert len(figure.axes) == 6 * 4
    assert "6 of 8 images" in figure.get_supxlabel()
    assert max(axes.images[0].get_array().shape[1] for axes in figure.axes) <= 320


def test_a_thousand_classes_in_one_image_are_not_all_named() -> None:
    truth = np.arange(1000).reshape(25, 40)
    image = np.zeros((25, 40, 3), np.uint8)
    data = segmentation_data(
        [image], [truth], [truth], [truth], classes=[f"class {i}" for i in range(1000)], forgotten=[999]
    )
    figure = draw_segmentation(data)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(texts) == 14
    assert texts[0] == "class 999"
    assert "986 more classes" in figure.get_supxlabel()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"images": []}, "give as many of each"),
        ({"images": [np.zeros((4, 8, 3))]}, "expected uint8"),
        ({"after": [np.zeros((4, 7), np.int64)]}, r"after mask of image 0 is \(4, 7\)"),
        ({"before": [np.full((4, 8), 3)]}, "before mask of image 0 holds labels outside the 3 classes"),
    ],
)
def test_wrong_masks_are_told(changed: dict[str, object], said: str) -> None:
    image, truth = pair()
    given: dict[str, object] = {"images": [image], "truth": [truth], "before": [truth], "after": [truth]}
    with pytest.raises(UsageError, match=said):
        segmentation_data(**{**given, **changed}, classes=NAMES, forgotten=[1], void=VOID)  # type: ignore[arg-type]
