from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image
from report_samples import sample_embedding, sample_report

from pour.errors import UsageError
from pour.report.page.feature_map import Embedding
from pour.report.page.sprites import encode_png, sheet_of, thumbnails


@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_what_another_reader_sees(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (7, 5, channels), dtype=np.uint8)
    read = np.asarray(Image.open(io.BytesIO(encode_png(image))))
    np.testing.assert_array_equal(read.reshape(image.shape), image)


def test_thumbnails_are_block_means() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 100, 96, 3), dtype=np.uint8)
    small = thumbnails(images)
    assert small.shape == (2, 33, 32, 3)
    assert small[1, 4, 5, 2] == round(float(images[1, 12:15, 15:18, 2].mean()))
    assert thumbnails(images[:, :48, :48]).shape == (2, 48, 48, 3)
    assert thumbnails(np.zeros((1, 1, 500, 1), np.uint8)).shape == (1, 1, 45, 1)


def test_sheet_holds_each_picture_in_its_place() -> None:
    images = np.arange(7, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
    sheet, columns = sheet_of(images)
    for index in range(7):
        row, column = divmod(index, columns)
        assert (sheet[row * 2 : row * 2 + 2, column * 3 : column * 3 + 3] == index).all()


def test_points_share_one_frame() -> None:
    embedding = sample_embedding()
    payload = embedding.payload(sample_report().data)
    stacked = np.concatenate(list(embedding.points.values()))
    low, span = stacked.min(axis=0), (stacked.max(axis=0) - stacked.min(axis=0)).max()
    for name, points in embedding.points.items():
        found = np.array(payload["points"][name]).T
        scaled = 1000 * (points - low) / span
        np.testing.assert_allclose(found[:, 0], scaled[:, 0], atol=0.51)
        # The shorter side is in the middle.
        offset = found[:, 1] - scaled[:, 1]
        assert offset.std() < 0.5
        assert 0 <= found.min() <= found.max() <= 1000
    assert payload["labels"] == embedding.labels.tolist()
    assert payload["predictions"]["pour-p"] == embedding.predictions["pour-p"].tolist()
    assert payload["note"] == ""


def test_sheet_in_the_payload_shows_the_images() -> None:
    embedding = sample_embedding()
    sheet = embedding.payload(sample_report().data)["sheet"]
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet["source"].partition(",")[2]))))
    for index in (0, 17, 59):
        row, column = divmod(sheet["place"][index], sheet["columns"])
        tile = picture[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8]
        np.testing.assert_array_equal(tile, embedding.images[index, :, :, 0])


def test_a_hundred_thousand_points_are_thinned_with_a_note() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(100_000) % 10
    points = rng.normal(size=(100_000, 2))
    data = sample_report(classes=[str(c) for c in range(10)]).data
    payload = Embedding(points={"original": points}, labels=labels, predictions={"original": labels}).payload(data)
    drawn = np.array(payload["labels"])
    assert len(drawn) == 3000
    assert (drawn == 3).sum() == 750
    assert np.bincount(drawn)[[0, 1, 9]].tolist() == [250, 250, 250]
    assert "3,000 of 100,000 points" in payload["note"]
    np.testing.assert_array_equal(labels[payload["rows"]], drawn)


def test_pictures_are_limited_and_forgotten_ones_come_first() -> None:
    n = 3000
    labels = np.arange(n) % 4
    embedding = Embedding(
        points={"original": np.zeros((n, 2))},
        labels=labels,
        predictions={"original": labels},
        images=np.zeros((n, 48, 48, 3), np.uint8),
    )
    payload = embedding.payload(sample_report().data)
    place = np.array(payload["sheet"]["place"])
    pictured = place >= 0
    assert pictured[: 4 * 100][labels[:400] == 3].all()
    assert pictured.sum() == 3 * 2**20 // (48 * 48 * 3)
    assert "have a picture" in payload["note"]
    assert sorted(place[pictured]) == list(range(pictured.sum()))


def test_bad_input_is_refused() -> None:
    good = {"points": {"o": np.zeros((2, 2))}, "labels": np.array([0, 1]), "predictions": {"o": np.array([0, 1])}}
    Embedding(**good)
    for change, message in [
        ({"points": {}}, "at least one model"),
        ({"predictions": {"u": np.array([0, 1])}}, "same models"),
        ({"points": {"o": np.full((2, 2), np.nan)}}, "finite"),
        ({"points": {"o": np.zeros((3, 2))}}, "2 finite pairs"),
        ({"predictions": {"o": np.array([0])}}, "2 class indices"),
        ({"images": np.zeros((1, 2, 2, 1), np.uint8)}, "images have shape"),
    ]:
        with pytest.raises(UsageError, match=message):
            Embedding(**{**good, **change})
    with pytest.raises(UsageError, match="4 classes"):
        Embedding(**{**good, "labels": np.array([0, 4])}).payload(sample_report().data)
