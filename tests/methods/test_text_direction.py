"""Forgetting by text as a method: the same models as with forget_concepts, with the classes in the history."""

from __future__ import annotations

import pytest
import torch

import pour
from pour.errors import UsageError
from pour.models import (
    PROMPTS,
    ImageTextEncoder,
    TextTable,
    ZeroShotClassifier,
    concept_directions,
    forget_concepts,
    prompt_embeddings,
    set_class_names,
    zero_shot_classifier,
)
from pour.models.clip.texts import prompts_of
from pour.models.state import digest

NAMES = [f"class {index}" for index in range(8)]
TEMPLATE = "a photo of a {}."


@pytest.fixture(scope="module")
def table() -> TextTable:
    texts = prompts_of(NAMES, (*PROMPTS, TEMPLATE))
    return TextTable(tuple(texts), torch.randn(len(texts), 16, generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def model(table: TextTable) -> ZeroShotClassifier:
    torch.manual_seed(1)
    encoder = ImageTextEncoder(16, width=4, blocks=(1,))
    return zero_shot_classifier(encoder, prompt_embeddings(table, NAMES), class_names=NAMES)


def forgotten(model: torch.nn.Module, request: pour.ForgetRequest, **options: object) -> torch.nn.Module:
    return pour.unlearn(model, request, method="text-direction", seed=2, device="cpu", **options)


@pytest.mark.parametrize("part", ["text", "specific", "centered"])
@pytest.mark.parametrize("classes", [(3,), (1, 4, 6)])
def test_gives_the_model_of_forget_concepts(
    model: ZeroShotClassifier, table: TextTable, classes: tuple[int, ...], part: str
) -> None:
    result = forgotten(model, pour.ForgetRequest(classes=list(classes), encode=table), part=part)
    expected = forget_concepts(
        model,
        [NAMES[label] for label in classes],
        encode=table,
        others=[name for label, name in enumerate(NAMES) if label not in classes],
        part=part,
        templates=(TEMPLATE,),
    )
    assert digest(result.state_dict()) == digest(expected.state_dict())
    assert digest(pour.fold(result).state_dict()) == digest(pour.fold(expected).state_dict())
    record = pour.history(result)[-1]
    assert (record.method, record.classes) == ("text-direction", classes)
    assert record.options["part"] == part


def test_without_a_text_encoder_the_rows_of_the_head_are_the_texts(model: ZeroShotClassifier) -> None:
    result = forgotten(model, pour.ForgetRequest(classes=[0]), part="centered")
    expected = pour.forget(model, directions=concept_directions(model.text[0], model.text[1:], part="centered"))
    assert digest(result.state_dict()) == digest(expected.state_dict())


def test_the_control_draws_its_directions_from_the_seed_and_the_classes(model: ZeroShotClassifier) -> None:
    result = forgotten(model, pour.ForgetRequest(classes=[3, 5]), part="random")
    rows = torch.randn(2, 16, generator=torch.Generator().manual_seed(2_000_006 + 8))
    assert digest(result.state_dict()) == digest(pour.forget(model, directions=rows).state_dict())


def test_a_class_that_an_earlier_request_removed_is_not_kept(model: ZeroShotClassifier, table: TextTable) -> None:
    first = forgotten(model, pour.ForgetRequest(classes=[0], encode=table), part="centered")
    second = forgotten(first, pour.ForgetRequest(classes=[1], encode=table), part="centered")
    rows = prompt_embeddings(table, NAMES, (TEMPLATE,))
    expected = pour.forget(first, directions=concept_directions(rows[1], rows[2:], part="centered"))
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], tensor, msg=name)


def test_wrong_use_is_said_in_a_sentence(model: ZeroShotClassifier, table: TextTable) -> None:
    with pytest.raises(UsageError, match="part must be specific, text, centered or random, but is 'odd'"):
        forgotten(model, pour.ForgetRequest(classes=[0]), part="odd")
    set_class_names(model, None)
    with pytest.raises(UsageError, match="no class names to make texts of"):
        forgotten(model, pour.ForgetRequest(classes=[0], encode=table))
