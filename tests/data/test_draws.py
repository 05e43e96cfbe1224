import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.data.draws import rows_per_class, stratified_rows


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 5))
def test_stratified_rows_keep_the_shares(labels, count, seed):
    labels = np.array(labels)
    rows = stratified_rows(labels, count, seed)
    assert len(rows) == min(count, len(labels))
    assert np.array_equal(rows, np.unique(rows))
    wanted = np.bincount(labels) * len(rows) / len(labels)
    found = np.bincount(labels[rows], minlength=len(wanted))
    # Each rare class may have taken a place from a frequent one.
    rare = int(((wanted > 0) & (wanted < 1)).sum())
    assert np.abs(found - wanted).max() <= 1 + rare
    if count >= np.count_nonzero(wanted):
        assert (found[wanted > 0] >= 1).all()
    assert np.array_equal(rows, stratified_rows(labels, count, seed))


def test_rows_per_class_come_class_after_class():
    labels = np.array([2, 0, 1, 0, 2, 2])
    rows = rows_per_class(labels, {2: 2, 0: 9}, np.random.default_rng(0))
    assert labels[rows].tolist() == [2, 2, 0, 0]
    assert len(set(rows.tolist())) == 4
    assert rows_per_class(labels, {}, np.random.default_rng(0)).tolist() == []
