from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pour.report.figures.study import _LABEL_WIDTH, _label_rows, draw_study

SERIES = {
    "steps": (0, 5),
    "alpha": (0.1, 0.0),
    "separation": (0.1, 0.0),
    "forgotten": (0.0, 0.0),
    "retained": (0.1, 0.1),
    "total": (0.1, 0.1),
}


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12))
def test_names_of_a_row_do_not_touch(places: list[float]) -> None:
    named = {f"class {number}": place for number, place in enumerate(places)}
    rows = _label_rows(named)
    width = _LABEL_WIDTH * (max(places) - min(places))
    assert rows.keys() == named.keys()
    for one, other in itertools.combinations(named, 2):
        assert rows[one] != rows[other] or abs(named[one] - named[other]) > width
    assert set(rows.values()) == set(range(max(rows.values()) + 1)), "no row is empty"


def test_names_stand_above_all_points() -> None:
    points = {
        method: [
            (f"class {number}", 1 + 0.01 * number, float(change)) for number, change in enumerate(np.linspace(*ends, 4))
        ]
        for method, ends in {"pour-p": (-0.001, 0.02), "gradient-ascent": (-0.7, -0.1)}.items()
    }
    figure = draw_study({"pour-p": SERIES}, points, {"pour-p": 0.5})
    figure.draw_without_rendering()
    axes = next(axes for axes in figure.findobj() if getattr(axes, "get_ylabel", str)() == "change of Acc_r, points")
    texts = [text.get_window_extent() for text in axes.texts]
    assert len(texts) == 4
    highest = max(
        axes.transData.transform(offset)[1] for dots in axes.collections for offset in np.asarray(dots.get_offsets())
    )
    assert min(box.y0 for box in texts) > highest
    assert max(box.y1 for box in texts) < axes.get_window_extent().y1
    for one, other in itertools.combinations(texts, 2):
        assert not one.overlaps(other)
