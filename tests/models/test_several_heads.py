"""Networks that average the scores of several heads, and networks with heads for training alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_families import CLASSES, timm_model
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import pour
from pour.errors import UsageError
from pour.models import extract_features, find_head, fold, forget, load, save, scores_of

IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(3))


class Averaged(nn.Module):
    """The mean of two heads. The second sees a hidden layer with as many outputs as there are classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, CLASSES), nn.Linear(12, CLASSES)
        self.hidden = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pixels = images[:, :, ::8, ::8].flatten(1)
        few = pixels[:, :12]
        return {"logits": (self.first(pixels) + self.second(few + self.hidden(few).sum(dim=1, keepdim=True))) / 2}


def distilled() -> nn.Module:
    return timm_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=2)


def with_teacher() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.DeiTConfig(**sizes, image_size=32, patch_size=8)
    config.num_labels = CLASSES
    return transformers.DeiTForImageClassificationWithTeacher(config)


def rows_set(model: nn.Module, names: str) -> nn.Module:
    """Give the heads random rows, which libraries may start at zero."""
    torch.manual_seed(0)
    for name in names.split(","):
        for parameter in model.get_submodule(name).parameters():
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


FAMILIES: list[Any] = [
    (distilled, "head,head_dist"),
    (with_teacher, "cls_classifier,distillation_classifier"),
    (Averaged, "first,second"),
]


@pytest.mark.parametrize(("build", "names"), FAMILIES)
def test_all_heads_are_found_and_projected_in_one_request(build: Any, names: str, tmp_path) -> None:
    """Before, one head was projected, and half of the answer stayed."""
    model = rows_set(build(), names)
    head = find_head(model, example=IMAGES)
    assert head.names == names
    assert head.found_by.endswith("verified on an input")
    forgotten = forget(model, [1, 4], forgotten_logit="keep", direction="scores", example=IMAGES)
    with torch.no_grad():
        scores = scores_of(forgotten(IMAGES)).double()
    assert (scores[:, [1, 4]] - scores.mean(dim=1, keepdim=True)).abs().max() <= 1e-5 * scores.abs().max()
    assert [entry.options["head"] for entry in pour.history(forgotten)] == [names.split(",")]
    masked = forget(forget(model, [1], example=IMAGES), [4])
    loaded = load(save(masked, tmp_path / "m.safetensors"), model)
    assert find_head(loaded).names == names
    with torch.no_grad():
        before, after, plain = (scores_of(each(IMAGES)) for each in (masked, loaded, fold(masked)))
    assert torch.equal(before, after)
    assert (before[:, [1, 4]] == before[:, 1].min()).all()
    retained = [label for label in range(CLASSES) if label not in (1, 4)]
    torch.testing.assert_close(plain[:, retained], before[:, retained], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("build", "names"), FAMILIES)
def test_one_of_several_heads_is_refused(build: Any, names: str) -> None:
    model, (one, other) = rows_set(build(), names), names.split(",")
    with pytest.raises(UsageError, match=rf"scores of 2 heads.*all with head=\['{one}', '{other}'\]"):
        find_head(model, head=one, example=IMAGES)
    assert find_head(model, head=[one, other], example=IMAGES).names == names
    with pytest.raises(UsageError, match="does not prove that its scores are the output of"):
        find_head(model, head=other)


def test_a_layer_that_has_no_part_in_the_scores_is_no_further_head() -> None:
    with pytest.raises(UsageError, match="are not the mean or sum of its heads 'first,second,hidden'"):
        find_head(Averaged(), head=["first", "second", "hidden"], example=IMAGES)
    with pytest.raises(UsageError, match=r"different numbers of scores \(a 3, b 4\)"):
        find_head(nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(2, 4)}), head="a,b")


def test_features_and_weight_are_those_of_one_layer_on_the_joined_features() -> None:
    model = rows_set(distilled(), "head,head_dist")
    head = find_head(model)
    tapped = extract_features(model, [(IMAGES, torch.arange(6))])
    assert tapped.features.shape == (6, 48) == (6, head.num_features)
    torch.testing.assert_close(tapped.features @ head.weight.T + head.bias, tapped.scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pour-p", {}),
        ("delete", {"steps": 2}),
        ("finetune", {"epochs": 1}),
        ("gradient-ascent", {"epochs": 1}),
        ("neggrad-plus", {"epochs": 1}),
        ("random-label", {"epochs": 1}),
        ("salun", {"epochs": 1}),
    ],
)
@pytest.mark.filterwarnings("ignore::pour.errors.PourWarning")
def test_methods_without_a_use_for_one_head_work(method: str, options: dict[str, Any]) -> None:
    model = rows_set(Averaged(), "first,second")
    known = int(scores_of(model(IMAGES))[0].argmax())
    forget_set = TensorDataset(IMAGES[:1], torch.tensor([known]))
    retain_set = TensorDataset(IMAGES, torch.full((6,), (known + 1) % CLASSES))
    result = pour.unlearn(
        model,
        classes=[known],
        forget=forget_set,
        retain=retain_set,
        method=method,
        device="cpu",
        progress=False,
        **options,
    )
    assert find_head(result).names == "first,second"
    assert not torch.equal(scores_of(result(IMAGES)), scores_of(model(IMAGES)))


def test_other_methods_name_those_that_work() -> None:
    forget_set = TensorDataset(IMAGES, torch.full((6,), 2))
    with pytest.raises(UsageError, match=r"pour-a needs one head, but .* head, head_dist; use one of .*pour-p"):
        pour.unlearn(distilled(), classes=[2], forget=forget_set, device="cpu", progress=False)


def test_an_audit_of_several_heads() -> None:
    labels = torch.arange(140) % CLASSES
    images = torch.rand(140, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    model = rows_set(Averaged(), "first,second")
    with torch.no_grad():
        # Labels that the network recognises.
        labels = scores_of(model(images)).argmax(dim=1)
    present = labels.unique().tolist()
    data = {"train": TensorDataset(images, labels), "test": TensorDataset(images, labels)}
    report = pour.audit(
        original=model,
        unlearned=forget(model, [present[0]], example=IMAGES),
        data=data,
        classes=[present[0]],
        device="cpu",
        progress=False,
    )
    assert report.value("acc_f") == 0


def test_heads_for_training_alone_forget_too() -> None:
    """Before, the auxiliary heads of GoogLeNet kept the class, which further training would read."""
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.googlenet(weights=None, num_classes=CLASSES, aux_logits=True, init_weights=False)
    forgotten = forget(model, [3])
    assert find_head(forgotten).name == "fc"
    assert pour.history(forgotten)[-1].options["head"] == ["fc", "aux1.fc2", "aux2.fc2"]
    with torch.no_grad():
        outputs = forgotten.train()(torch.rand(2, 3, 64, 64))
    assert all((output[:, 3] == -1e15).all() for output in outputs)
