import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.errors import UsageError
from pour.geometry import Projector, ProjectorFitter


def draw(seed, rows=60, classes=4, width=6, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (rows - classes,), generator=generator)])
    features = torch.randn(rows, width, generator=generator, dtype=torch.float64) + labels.unsqueeze(1) + offset
    return features, labels


def numpy_means(features, labels, classes):
    return np.stack([features.double().numpy()[labels.numpy() == label].mean(axis=0) for label in classes])


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    classes=st.permutations(range(4)).flatmap(lambda order: st.integers(1, 3).map(lambda k: order[:k])),
    centered=st.booleans(),
)
def test_batches_give_the_means_of_all_data(seed, cuts, classes, centered):
    features, labels = draw(seed)
    fitter = ProjectorFitter(classes, centered=centered)
    edges = [0, *sorted(cuts), 60]
    for start, stop in itertools.pairwise(edges):
        assert fitter.update(features[start:stop], labels[start:stop]) is fitter
    means = numpy_means(features, labels, classes)
    np.testing.assert_allclose(fitter.means.numpy(), means, rtol=1e-12)
    assert fitter.counts.tolist() == [int((labels == label).sum()) for label in classes]
    if centered:
        means = means - numpy_means(features, labels, range(4)).mean(axis=0)
    np.testing.assert_allclose(fitter.directions.numpy(), means, rtol=1e-9, atol=1e-12)
    expected = Projector.from_directions(torch.from_numpy(means))
    assert torch.allclose(fitter.projector.P, expected.P, atol=1e-9)


def test_means_far_from_the_origin_keep_their_digits():
    features, labels = draw(0, rows=4000, classes=2, offset=1e9)
    fitter = ProjectorFitter([1])
    for rows, marks in zip(features.split(7), labels.split(7), strict=True):
        fitter.update(rows, marks)
    np.testing.assert_allclose(fitter.means.numpy(), numpy_means(features - 1e9, labels, [1]) + 1e9, rtol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_is_gathered_in_float64(dtype):
    features, labels = draw(1, rows=2000)
    fitter = ProjectorFitter([3]).update(features.to(dtype), labels)
    assert fitter.means.dtype == torch.float64
    np.testing.assert_allclose(fitter.means.numpy(), numpy_means(features.to(dtype), labels, [3]), rtol=1e-12)
    assert fitter.projector.basis.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_labels_may_be_left_out_for_one_class():
    features, _ = draw(0)
    assert torch.allclose(ProjectorFitter([5]).update(features).means[0], features.mean(dim=0))
    with pytest.raises(UsageError, match="pass labels"):
        ProjectorFitter([0, 1]).update(features)
    with pytest.raises(UsageError, match="pass labels"):
        ProjectorFitter([0], centered=True).update(features)


def test_token_sequences_are_taken_row_by_row():
    features, labels = draw(0)
    flat = ProjectorFitter([1]).update(features, labels)
    nested = ProjectorFitter([1]).update(features.reshape(5, 12, 6), labels.reshape(5, 12))
    assert torch.equal(flat.means, nested.means)


def test_rows_of_other_classes_are_passed_over_unless_centred():
    features, labels = draw(0)
    features[labels == 1] = float("nan")
    assert torch.isfinite(ProjectorFitter([0]).update(features, labels).means).all()
    with pytest.raises(UsageError, match="NaN"):
        ProjectorFitter([0], centered=True).update(features, labels)
    with pytest.raises(UsageError, match="NaN"):
        ProjectorFitter([1]).update(features, labels)


@pytest.mark.parametrize(("classes", "message"), [([], "at least one"), ([1, 1], "duplicates"), ([-1], "negative")])
def test_impossible_classes_are_refused(classes, message):
    with pytest.raises(UsageError, match=message):
        ProjectorFitter(classes)


def test_bad_input_is_refused():
    features, labels = draw(0)
    with pytest.raises(UsageError, match="class 7"):
        _ = ProjectorFitter([0, 7]).update(features, labels).projector
    with pytest.raises(UsageError, match="width 5, earlier batches had 6"):
        ProjectorFitter([0]).update(features, labels).update(features[:, :5], labels)
    with pytest.raises(UsageError, match="one per row"):
        ProjectorFitter([0]).update(features, labels[:-1])
    with pytest.raises(UsageError, match="integer"):
        ProjectorFitter([0]).update(features, labels.double())
    with pytest.raises(UsageError, match="floating-point"):
        ProjectorFitter([0]).update(labels.reshape(10, 6))
    with pytest.raises(UsageError, match="at least two classes"):
        _ = ProjectorFitter([0], centered=True).update(features[:1], labels[:1]).directions
