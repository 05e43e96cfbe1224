"""Transformed copies of images."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pour.unlearning.toolkit.anchors import has_copies, transformed_copies


@given(
    images=st.integers(1, 5),
    channels=st.sampled_from([None, 1, 3, 4]),
    height=st.integers(4, 9),
    width=st.integers(4, 9),
    count=st.integers(1, 7),
)
def test_copies_have_the_shape_and_range_of_the_images(
    images: int, channels: int | None, height: int, width: int, count: int
) -> None:
    shape = (images, height, width) if channels is None else (images, channels, height, width)
    source = torch.rand(shape)
    copies = transformed_copies(source, count, torch.Generator().manual_seed(0))
    assert copies.shape == (count, *shape[1:])
    assert copies.isfinite().all()
    assert copies.abs().max() < 6


def test_the_same_generator_gives_the_same_copies() -> None:
    source = torch.rand(4, 3, 8, 8)
    first, again, other = (transformed_copies(source, 6, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_most_copies_are_no_longer_the_image() -> None:
    source = torch.rand(1, 1, 16, 16)
    copies = transformed_copies(source, 200, torch.Generator().manual_seed(0))
    same = [torch.allclose(copy, source[0], atol=1e-3) for copy in copies]
    assert sum(same) < 10


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (torch.zeros(2, 64), False),
        (torch.zeros(2, 3, 8, 8), True),
        (torch.zeros(2, 28, 28), True),
        (torch.zeros(2, 3, 1, 8), False),
        (torch.zeros(2, 8, 8, dtype=torch.int64), False),
    ],
)
def test_only_planes_have_views(inputs: torch.Tensor, expected: bool) -> None:
    assert has_copies(inputs) is expected
