from __future__ import annotations

import numpy as np
import pytest
import torch
from small_requests import CLASSES, FORGET, FORGOTTEN, NOTHING, cross_entropy, losses, small_request, tiny_net, unlearn

import pour
from pour.data.dataset import ImageSplit
from pour.training.run import Run
from pour.unlearning import ForgetRequest, Images


def _split(count: int = 40, label: int = FORGOTTEN) -> ImageSplit:
    """Images that carry their own number in every pixel, so that a label can be traced to its image."""
    images = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 6, 6, 1), np.uint8)
    return ImageSplit(images, np.full(count, label))


def test_every_image_keeps_its_label_over_epochs_and_augmentations() -> None:
    run = Run(seed=3, device="cpu", progress=False)
    labels = np.random.default_rng(0).integers(CLASSES, size=40)
    loader = Images(_split()).relabelled(labels).training(run, batch_size=7, augment=True)
    seen: dict[int, set[int]] = {}
    for epoch in range(3):
        for images, drawn in loader.epoch(epoch):
            for image, label in zip(images, drawn, strict=True):
                seen.setdefault(int(image.max()), set()).add(int(label))
    assert seen == {number: {int(labels[number])} for number in seen}
    assert len(seen) > 35


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The labels that a run draws, one array to a run."""
    found: list[np.ndarray] = []
    relabelled = Images.relabelled

    def spy(self: Images, labels: np.ndarray) -> Images:
        found.append(labels)
        return relabelled(self, labels)

    monkeypatch.setattr(Images, "relabelled", spy)
    return found


def test_labels_are_uniform_over_the_classes_that_may_be_drawn(drawn: list[np.ndarray]) -> None:
    split = _split(20_000)
    for forgotten, options in (
        ([FORGOTTEN], {}),
        ([FORGOTTEN], {"different": True}),
        ([FORGOTTEN, 0], {"different": True}),
    ):
        request = ForgetRequest(classes=forgotten, forget=split)
        unlearn(tiny_net(), "random-label", request, force=True, steps=1, **options)
        answers = [label for label in range(CLASSES) if not options or label not in forgotten]
        expected = np.where(np.isin(np.arange(CLASSES), answers), 1 / len(answers), 0)
        np.testing.assert_allclose(np.bincount(drawn[-1], minlength=CLASSES) / len(split), expected, atol=0.02)


def test_the_loss_is_cross_entropy_to_the_drawn_labels(drawn: list[np.ndarray]) -> None:
    model, split = tiny_net(), _split()
    request = ForgetRequest(classes=[FORGOTTEN], forget=split)
    result = unlearn(model, "random-label", request, force=True, lr=NOTHING, epochs=1, batch_size=40, augment=False)
    images = torch.from_numpy(split.images).permute(0, 3, 1, 2) / 255
    assert losses(result) == pytest.approx([cross_entropy(model, (images, torch.from_numpy(drawn[0])))], rel=1e-5)


def test_a_class_forgotten_before_is_never_the_answer() -> None:
    """With a masked class as the answer the loss would be astronomical."""
    model = unlearn(tiny_net(), "masked-head", ForgetRequest(classes=[0]))
    request = ForgetRequest(classes=[FORGOTTEN], forget=_split())
    result = unlearn(model, "random-label", request, force=True, lr=NOTHING, epochs=1, batch_size=40)
    assert losses(result).max() < 100


def test_own_batches_are_relabelled_batch_by_batch_and_said_so() -> None:
    model = tiny_net()
    with pytest.warns(UserWarning, match="draws their random labels again in every batch; pass a split"):
        result = unlearn(model, "random-label", small_request(), lr=NOTHING, epochs=20, different=True)
    by_label = [
        [cross_entropy(model, (image[None], torch.tensor([label]))) for label in (0, 1, 3)] for image in FORGET[0][0]
    ]
    first = losses(result)[::2]
    assert len(set(first.round(6))) > 3
    assert np.mean(np.min(by_label, axis=1)) - 1e-5 <= first.min()
    assert first.max() <= np.mean(np.max(by_label, axis=1)) + 1e-5


def test_the_seed_decides_the_labels() -> None:
    model, request = tiny_net(), ForgetRequest(classes=[FORGOTTEN], forget=_split())
    runs = [
        pour.unlearn(
            model,
            request,
            method="random-label",
            force=True,
            lr=1e-2,
            epochs=1,
            seed=seed,
            device="cpu",
            progress=False,
        )
        for seed in (0, 0, 1)
    ]
    weights = [torch.cat([p.flatten() for p in run.parameters()]) for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
