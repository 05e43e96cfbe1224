"""Heads that compare directions: rows, projection before the features are normalised, mask, save and load."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, one_hot

import pour
from pour.errors import UsageError
from pour.models import find_head, fold, forget, load, save, tap_features

CLASSES, WIDTH = 5, 16


class Cosine(nn.Module):
    """``scale * cos(z, w)``, with a margin during training. The rows are stored in one of several ways."""

    def __init__(self, kind: str = "rows", *, normalise: str = "both", classes: int = CLASSES) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.5))
        self.kind, self.normalise = kind, normalise
        if kind == "layer":
            self.fc = nn.Linear(WIDTH, classes, bias=False)
        else:
            self.rows = nn.Parameter(torch.randn((WIDTH, classes) if kind == "columns" else (classes, WIDTH)))

    def weight(self) -> Tensor:
        if self.kind == "layer":
            return self.fc.weight
        return self.rows.T if self.kind == "columns" else self.rows

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        weight = self.weight()
        z = normalize(z) if self.normalise in ("both", "features") else z
        weight = normalize(weight) if self.normalise in ("both", "rows") else weight
        scores = linear(z, weight)
        if labels is not None:
            scores = scores - 0.3 * one_hot(labels, scores.shape[1])
        return self.log_scale.exp() * scores


class Net(nn.Module):
    """An embedding before the head. ``inline`` computes the cosines without the head."""

    def __init__(self, head: nn.Module | None = None, *, inline: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 24), nn.Tanh())
        self.emb = nn.Linear(24, WIDTH)
        self.cos = Cosine() if head is None else head
        self.inline = inline

    def forward(self, images: Tensor) -> Tensor:
        z = self.emb(self.body(images))
        if self.inline:
            return 12 * linear(normalize(z), normalize(self.cos.weight()))
        return self.cos(z)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(200, 3, 2, 2, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["rows", "columns", "layer"])
@pytest.mark.parametrize("normalise", ["both", "features", "rows"])
def test_rows_and_scores_follow_an_oracle_in_double_precision(kind: str, normalise: str, images: Tensor) -> None:
    torch.manual_seed(0)
    model = Net(Cosine(kind, normalise=normalise)).eval()
    forgotten = forget(model, [1, 3], direction="scores", forgotten_logit="keep")
    with torch.no_grad(), tap_features(model, "cos") as tap:
        model(images)
        z, weight, scale = tap.raw.double(), model.cos.weight().double(), model.cos.log_scale.double().exp()
        rows = weight if normalise == "features" else normalize(weight)
        centred = (rows - rows.mean(dim=0))[[1, 3]]
        projected = z - z @ torch.linalg.pinv(centred) @ centred
        projected = projected if normalise == "rows" else normalize(projected)
        expected = scale * projected @ rows.T
        assert (forgotten(images) - expected).abs().max() <= 1e-5 * expected.abs().max()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["both", "features", "rows"]), st.booleans())
def test_a_forgotten_class_never_wins_and_retained_decisions_stay(seed: int, normalise: str, masked: bool) -> None:
    torch.manual_seed(seed)
    model, images = Net(Cosine(normalise=normalise)).double().eval(), torch.randn(100, 3, 2, 2).double()
    forgotten = forget(
        model, [seed % CLASSES], direction="decisions", forgotten_logit="mask" if masked else "keep", example=images[:2]
    )
    with torch.no_grad():
        before, after = model(images), forgotten(images)
    retained = [label for label in range(CLASSES) if label != seed % CLASSES]
    assert not (after.argmax(dim=1) == seed % CLASSES).any()
    assert torch.equal(before[:, retained].argmax(dim=1), after[:, retained].argmax(dim=1))


@pytest.mark.parametrize("options", [{}, {"head": "cos"}])
@pytest.mark.parametrize("kind", ["rows", "columns", "layer"])
def test_it_is_found_named_saved_and_loaded_but_not_folded(
    kind: str, options: dict[str, Any], images: Tensor, tmp_path
) -> None:
    model = Net(Cosine(kind))
    assert find_head(model, **options).found_by.endswith("proved by the code of the model")
    head = find_head(model, example=images[:2], **options)
    assert (head.name, head.num_classes, head.num_features) == ("cos", CLASSES, WIDTH)
    assert head.found_by.endswith("verified on an input")
    torch.testing.assert_close(
        head.weight.norm(dim=1), torch.full((CLASSES,), float(model.cos.log_scale.detach().exp()))
    )
    forgotten = forget(model, [2], example=images[:2], **options)
    loaded = load(save(forgotten, tmp_path / "m.safetensors"), Net(Cosine(kind)))
    assert torch.equal(loaded(images), forgotten(images))
    with pytest.raises(UsageError, match=r"'cos' is a Cosine that computes more than W z"):
        fold(forgotten)


@pytest.mark.parametrize("options", [{}, {"head": "emb"}, {"head": "cos"}])
@pytest.mark.parametrize("on_input", [False, True])
def test_cosines_without_a_module_are_refused_with_the_way_out(
    options: dict[str, Any], on_input: bool, images: Tensor
) -> None:
    """Before, the embedding was taken for the head, and classes that do not exist were accepted."""
    model = Net(inline=True)
    example = {"example": images[:2]} if on_input else {}
    with pytest.raises(
        UsageError, match=r"module of its own|pass example=|gives 16 scores, but the model another number"
    ):
        pour.forget(model, classes=[10], **options, **example)


def test_a_margin_for_labels_does_not_disturb(images: Tensor) -> None:
    forgotten = forget(Net(), [1])
    z, labels = torch.randn(4, WIDTH), torch.tensor([0, 2, 3, 4])
    difference = forgotten.cos(z) - forgotten.cos(z, labels)
    torch.testing.assert_close(difference, 0.3 * forgotten.cos.head.log_scale.exp() * one_hot(labels, CLASSES))


@pytest.mark.parametrize(
    "head", [nn.Bilinear(WIDTH, WIDTH, CLASSES), nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.Tanh())]
)
def test_other_modules_are_no_heads(head: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"not nn.Linear or a 1x1"):
        find_head(Net(head), head="cos")
