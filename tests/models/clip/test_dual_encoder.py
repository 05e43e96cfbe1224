"""Dual encoders: forgetting by text directions, folding into the visual projection, saving and loading."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import dual_families as families
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pour
from pour.errors import UsageError
from pour.models import embed_images, find_image_projection, text_encoder, zero_shot_classifier
from pour.models.clip.dual_encoder import expectations
from pour.models.projecting.projected_embedding import ProjectedEmbedding

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = families.WIDTH


@pytest.fixture(params=list(families.FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def directions(count: int, seed: int = 3) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def embedding(model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        return embed_images(model, families.images())


def test_the_embedding_has_nothing_along_the_directions_and_the_rest_as_before(family: str) -> None:
    model = families.FAMILIES[family]()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    original = embedding(model).double().numpy()
    removed = directions(3)
    got = embedding(pour.forget(model, directions=removed)).double().numpy()
    # An independent oracle: least squares on the directions in float64.
    rows = removed.double().numpy()
    expected = original - original @ np.linalg.pinv(rows) @ rows
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(original).max())
    assert np.abs(got @ rows.T).max() < 1e-5 * np.abs(original @ rows.T).max()
    # The model passed in is as it was.
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(isinstance(module, ProjectedEmbedding) for module in model.modules())


@pytest.mark.parametrize("name", list(families.FOLDABLE))
def test_folding_gives_the_same_scores_class_and_keys(name: str) -> None:
    model = families.FOLDABLE[name]()
    forgotten = pour.forget(model, directions=directions(2))
    folded = pour.fold(forgotten)
    assert type(folded) is type(model)
    assert list(folded.state_dict()) == list(model.state_dict())
    texts = torch.nn.functional.normalize(directions(5, seed=9), dim=1)
    scores = [torch.nn.functional.normalize(embedding(each), dim=1) @ texts.T for each in (forgotten, folded)]
    torch.testing.assert_close(*scores, atol=1e-5, rtol=0)
    # Only the visual projection changed.
    changed = {key for key, tensor in folded.state_dict().items() if not torch.equal(tensor, model.state_dict()[key])}
    assert 1 <= len(changed) <= 2, changed
    assert [record.method for record in pour.history(folded)] == ["pour-p", "fold"]


def test_siglip_keeps_its_projector_and_says_why() -> None:
    forgotten = pour.forget(families.hf_siglip(), directions=directions(1))
    with pytest.raises(UsageError, match=r"x \+ MLP\(LayerNorm\(x\)\)"):
        pour.fold(forgotten)


def test_a_models_own_outputs_have_forgotten_too() -> None:
    model = families.hf_clip()
    removed = directions(1)
    ids = torch.tensor([[1, 4, 5, 2], [1, 6, 7, 2]])
    for each in (pour.forget(model, directions=removed), pour.fold(pour.forget(model, directions=removed))):
        with torch.no_grad():
            output = each(input_ids=ids, pixel_values=families.images())
            plain = model(input_ids=ids, pixel_values=families.images())
        assert (output.image_embeds @ removed[0]).abs().max() < 1e-5
        torch.testing.assert_close(output.image_embeds.norm(dim=1), torch.ones(3))
        # Texts are not touched.
        torch.testing.assert_close(output.text_embeds, plain.text_embeds)


def test_an_open_clip_model_answers_as_before_around_its_projector() -> None:
    model = families.open_clip_vit()
    forgotten = pour.forget(model, directions=directions(1))
    assert forgotten.visual.image_size == model.visual.image_size
    features = forgotten.encode_image(families.images(), normalize=True)
    assert (features @ directions(1)[0]).abs().max() < 1e-5
    with pytest.raises(AttributeError):
        _ = forgotten.visual.nothing_of_the_kind


def test_two_requests_are_one_projector_of_higher_rank(family: str) -> None:
    model = families.FAMILIES[family]()
    rows = directions(3)
    stepwise = pour.forget(pour.forget(model, directions=rows[:1]), directions=rows[1:])
    together = pour.forget(model, directions=rows)
    torch.testing.assert_close(embedding(stepwise), embedding(together), atol=1e-5, rtol=1e-5)
    place = find_image_projection(stepwise)
    assert place is not None
    assert isinstance(place.module, ProjectedEmbedding)
    assert not isinstance(place.layer, ProjectedEmbedding)
    assert [record.options["rank"] for record in pour.history(stepwise)] == [1, 3]


def test_saved_and_loaded_with_history(family: str, tmp_path: Path) -> None:
    model = families.FAMILIES[family]()
    forgotten = pour.forget(model, directions=directions(2))
    path = pour.save(forgotten, tmp_path / "m.safetensors")
    # Into the plain model, and into one that was projected otherwise.
    for skeleton in (model, pour.forget(model, directions=directions(1, seed=5))):
        loaded = pour.load(path, skeleton)
        torch.testing.assert_close(embedding(loaded), embedding(forgotten), atol=0, rtol=0)
        assert [record.options["rank"] for record in pour.history(loaded)] == [2]
    if family in families.FOLDABLE:
        folded = pour.fold(forgotten)
        plain = pour.load(pour.save(folded, tmp_path / "folded.safetensors"), model)
        torch.testing.assert_close(embedding(plain), embedding(folded), atol=0, rtol=0)


@settings(deadline=None, max_examples=25)
@given(
    count=st.integers(1, WIDTH - 1),
    seed=st.integers(0, 10_000),
    scale=st.floats(1e-3, 1e3),
    repeat=st.booleans(),
)
def test_any_directions_fold_exactly(count: int, seed: int, scale: float, repeat: bool) -> None:
    model = _small()
    rows = scale * directions(count, seed)
    if repeat:
        rows = torch.cat([rows, -2 * rows[:1]])
    forgotten = pour.forget(model, directions=rows)
    folded = pour.fold(forgotten)
    left = embedding(folded)
    torch.testing.assert_close(left, embedding(forgotten), atol=1e-5, rtol=0)
    units = torch.nn.functional.normalize(rows, dim=1)
    assert (left @ units.T).abs().max() < 1e-5
    # A projection: forgetting once more changes nothing.
    torch.testing.assert_close(embedding(pour.fold(pour.forget(folded, directions=rows))), left, atol=1e-5, rtol=0)


_MODELS: dict[str, nn.Module] = {}


def _small() -> nn.Module:
    if not _MODELS:
        _MODELS["ours"] = families.ours().eval()
    return _MODELS["ours"]


def test_a_bias_is_projected_too() -> None:
    model = families.ours()
    model.visual_projection = nn.Linear(model.visual_projection.in_features, WIDTH)
    nn.init.normal_(model.visual_projection.bias, std=5.0)
    forgotten = pour.forget(model, directions=directions(2))
    folded = pour.fold(forgotten)
    torch.testing.assert_close(embedding(folded), embedding(forgotten), atol=1e-5, rtol=0)
    assert not torch.equal(folded.visual_projection.bias, model.visual_projection.bias)


def test_half_precision_keeps_its_dtype() -> None:
    model = families.hf_clip().to(torch.bfloat16)
    folded = pour.fold(pour.forget(model, directions=directions(1)))
    assert folded.visual_projection.weight.dtype == torch.bfloat16
    exact = folded.visual_projection.weight.double().T @ torch.nn.functional.normalize(directions(1), dim=1)[0].double()
    assert exact.abs().max() < 0.01 * model.visual_projection.weight.double().norm(dim=0).max()


def test_a_shared_or_computed_projection_is_not_folded_into() -> None:
    model = families.ours()
    forgotten = pour.forget(model, directions=directions(1))
    forgotten.other = nn.Linear(4, WIDTH, bias=False)
    forgotten.other.weight = forgotten.visual_projection.layer.weight
    with pytest.raises(UsageError, match="shares its weight"):
        pour.fold(forgotten)
    model = families.ours()
    nn.utils.parametrizations.weight_norm(model.visual_projection)
    with pytest.raises(UsageError, match="parametrization"):
        pour.fold(pour.forget(model, directions=directions(1)))


def test_wrong_use_is_said_in_a_sentence() -> None:
    model = families.ours()
    with pytest.raises(UsageError, match="no classes of its own"):
        pour.forget(model, classes=[0])
    with pytest.raises(UsageError, match=f"width 7, but the image embedding has {WIDTH}"):
        pour.forget(model, directions=torch.randn(7))
    with pytest.raises(UsageError, match="zero in row 0"):
        pour.forget(model, directions=torch.zeros(WIDTH))
    with pytest.raises(UsageError, match="no text tower"):
        text_encoder(model, None)
    with pytest.raises(UsageError, match="no dual encoder"):
        zero_shot_classifier(nn.Linear(3, 2), torch.eye(2))
    with pytest.raises(UsageError, match="embed them with the same model"):
        zero_shot_classifier(model, torch.eye(2))


def test_an_open_clip_tower_without_a_linear_end_says_so() -> None:
    model = families.open_clip_vit()
    model.visual.proj = None
    place = find_image_projection(model)
    assert place is not None
    assert not place.parts
    forgotten = pour.forget(model, directions=torch.randn(place.num_features))
    with pytest.raises(UsageError, match="does not end in a linear layer"):
        pour.fold(forgotten)


def test_the_text_tower_encodes_texts(tmp_path: Path) -> None:
    families.save_tokenizer(tmp_path)
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for model, full in ((families.hf_clip(), False), (families.hf_siglip(), True)):
        model.train()
        texts = ["a photo of a cat", "a dog"]
        got = text_encoder(model, tokenizer)(texts)
        assert got.shape == (2, WIDTH)
        assert model.training
        model.eval()
        batch = tokenizer(texts, padding="max_length" if full else True, return_tensors="pt")
        with torch.no_grad():
            output = model.get_text_features(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        expected = output if isinstance(output, Tensor) else output.pooler_output
        torch.testing.assert_close(got, expected)
        assert not torch.allclose(got[0], got[1])


def test_open_clip_encodes_texts() -> None:
    model = families.open_clip_vit()
    encode = text_encoder(model, lambda texts: torch.tensor([[len(text) % 60] * 8 for text in texts]))
    assert encode(["a", "bb", "ccc"]).shape == (3, WIDTH)


def test_expectations_come_from_the_library() -> None:
    clip, siglip = expectations(families.hf_clip()), expectations(families.hf_siglip())
    assert round(clip["mean"][0], 3) == 0.481
    assert clip["image_size"] == siglip["image_size"] == families.SIDE
    assert siglip["mean"] == (0.5, 0.5, 0.5)
    opened = families.open_clip_resnet()
    assert expectations(opened)["image_size"] == families.SIDE
    assert expectations(opened)["scale"] == pytest.approx(float(opened.logit_scale.detach().exp()))


def test_the_projected_embedding_can_be_copied_and_trained() -> None:
    forgotten = copy.deepcopy(pour.forget(families.ours(), directions=directions(1)))
    forgotten.train()
    forgotten(families.images()).sum().backward()
    assert forgotten.visual_projection.layer.weight.grad is not None


def test_a_classifier_with_an_encoders_tower_is_a_classifier() -> None:
    transformers = pytest.importorskip("transformers")
    config = families.hf_siglip().config
    config.num_labels = 4
    torch.manual_seed(0)
    model = transformers.SiglipForImageClassification(config).eval()
    assert find_image_projection(model) is None
    forgotten = pour.forget(model, classes=[0])
    images = torch.rand(3, 3, families.SIDE, families.SIDE)
    with torch.no_grad():
        assert (forgotten(images).logits.argmax(dim=1) != 0).all()


def test_the_text_tower_leaves_every_module_in_its_mode() -> None:
    class Dual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.live = nn.BatchNorm1d(2), nn.Linear(2, 2)

        def encode_text(self, tokens: Tensor) -> Tensor:
            assert not self.live.training
            return self.live(self.frozen(tokens))

    model = Dual().train()
    model.frozen.eval()
    text_encoder(model, lambda texts: torch.ones(len(texts), 2))(["a", "b"])
    assert model.training
    assert model.live.training
    assert not model.frozen.training
