"""pour.forget, pour.unlearn and pour.audit read the batches of transformers and datasets of dictionaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import pour
from pour._torchvision import torchvision_works

torchvision_works()
transformers = pytest.importorskip("transformers")

QUIET: dict[str, Any] = {"device": "cpu", "progress": False}
CLASSES = 4


class Rows(Dataset):  # type: ignore[type-arg]
    """Samples with the fields of transformers: red, green, blue and bright noise."""

    classes = ("red", "green", "blue", "bright")

    def __init__(self, only: tuple[int, ...] = (0, 1, 2, 3), count: int = 48) -> None:
        generator = torch.Generator().manual_seed(count)
        self.labels = torch.tensor(only).repeat(count // len(only))
        self.images = 0.3 * torch.rand(len(self.labels), 3, 8, 8, generator=generator)
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            image[: 3 if label == 3 else label + 1][0 if label == 3 else label :] += 0.6

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": self.images[i], "labels": int(self.labels[i])}


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return (self.rows[i] for i in range(len(self.rows)))


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    """A ViT of transformers that knows the four classes."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_labels=CLASSES,
    )
    model: nn.Module = transformers.ViTForImageClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rows = Rows()
    for _ in range(60):
        optimizer.zero_grad()
        model(pixel_values=rows.images, labels=rows.labels).loss.backward()
        optimizer.step()
    model.eval()
    assert accuracy(model, rows) > 0.95
    return model


def accuracy(model: nn.Module, rows: Rows) -> float:
    with torch.no_grad():
        return float((model(pixel_values=rows.images).logits.argmax(dim=1) == rows.labels).float().mean())


def collate(items: list[dict[str, Any]]) -> Any:
    """Return a batch as the processors of transformers do."""
    return transformers.BatchEncoding(torch.utils.data.default_collate(items))


def loader(rows: Rows, **options: Any) -> DataLoader[Any]:
    return DataLoader(rows, batch_size=16, collate_fn=collate, **options)


def test_class_means_come_from_the_batches_of_transformers(vit: nn.Module) -> None:
    rows = Rows((1,))
    results = [
        pour.forget(vit, classes=[1], direction="means", data=data)
        for data in (TensorDataset(rows.images, rows.labels), rows, loader(rows), iter(loader(rows)))
    ]
    expected = results[0].state_dict()
    for result in results[1:]:
        for name, tensor in result.state_dict().items():
            torch.testing.assert_close(tensor, expected[name])
    assert accuracy(results[0], rows) == 0


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_unlearning_reads_the_batches_of_transformers(vit: nn.Module, kind: str) -> None:
    forget, retain = Rows((2,)), Rows((0, 1, 3))
    data = {"forget": forget, "retain": retain}
    if kind == "loader":
        data = {name: loader(rows, shuffle=True) for name, rows in data.items()}
    result = pour.unlearn(vit, classes=[2], **data, method="finetune", epochs=1, **QUIET)
    assert accuracy(result, retain) > 0.9
    result = pour.unlearn(vit, classes=[2], **data, method="delete", epochs=10, lr=1e-2, **QUIET)
    assert accuracy(result, forget) < 0.1


def test_an_audit_reads_loaders_datasets_and_streams_alike(vit: nn.Module) -> None:
    train, test = Rows(), Rows(count=40)
    unlearned = pour.forget(vit, classes=[2])
    tensors = {"train": TensorDataset(train.images, train.labels), "test": TensorDataset(test.images, test.labels)}
    expected = pour.audit(original=vit, unlearned=unlearned, data=tensors, **QUIET)
    forms: dict[str, dict[str, Any]] = {
        "datasets": {"train": train, "test": test},
        "loaders": {"train": loader(train, shuffle=True), "test": loader(test)},
        "streams": {"train": DataLoader(Stream(train), batch_size=16), "test": DataLoader(Stream(test), batch_size=9)},
    }
    for name, data in forms.items():
        report = pour.audit(original=vit, unlearned=unlearned, data=data, **QUIET)
        assert not report.notes, name
        for metric in ("acc_r", "acc_f", "acc_tr", "cka_f_o", "rus_o", "entropy_f", "nc1_train"):
            assert report.value(metric) == pytest.approx(expected.value(metric), abs=1e-5), (name, metric)


def test_workers_give_the_same_readings(vit: nn.Module) -> None:
    train, test = Rows(), Rows(count=40)
    unlearned = pour.forget(vit, classes=[2])
    reports = [
        pour.audit(
            original=vit,
            unlearned=unlearned,
            data={"train": loader(train, num_workers=workers, shuffle=True), "test": loader(test)},
            **QUIET,
        )
        for workers in (0, 1)
    ]
    assert reports[0].values() == pytest.approx(reports[1].values(), abs=1e-6)


class Counting(list):  # type: ignore[type-arg]
    """Batches that count how many of them are read."""

    read = 0

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.read += 1
            yield batch


def test_an_audit_reads_a_loader_as_a_whole_once(vit: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pour.inspection.preflight.enough", lambda image: 4)
    batches = Counting(loader(Rows(count=480)))
    data = {"train": batches, "test": loader(Rows(count=40))}
    pour.audit(original=vit, unlearned=pour.forget(vit, classes=[2]), data=data, **QUIET)
    # And the first ones, for the check of the models and of their heads.
    assert len(batches) < batches.read <= 1.5 * len(batches)


def test_an_audit_reads_a_dataset_as_a_whole_once(vit: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(Rows):
        reads = 0

        def __getitem__(self, i: int) -> dict[str, Any]:
            self.reads += 1
            return super().__getitem__(i)

    monkeypatch.setattr("pour.inspection.preflight.enough", lambda image: 4)
    train = Counted(count=400)
    data = {"train": train, "test": Rows(count=40)}
    report = pour.audit(original=vit, unlearned=pour.forget(vit, classes=[2]), data=data, **QUIET)
    assert report.data.counts == {"test": (10, 30), "train": (100, 300)}
    # And a few samples for the check of the models and of their heads, not all of them for their labels.
    assert 400 < train.reads <= 1.5 * 400


def test_augmentation_in_workers_is_noticed_behind_a_generator(vit: nn.Module) -> None:
    class Noisy(Rows):
        def __getitem__(self, i: int) -> dict[str, Any]:
            item = super().__getitem__(i)
            return {**item, "pixel_values": item["pixel_values"] + 0.01 * torch.rand(3, 8, 8)}

    data = {
        "train": loader(Noisy(), num_workers=1, generator=torch.Generator().manual_seed(0)),
        "test": loader(Rows(count=40)),
    }
    torch.manual_seed(0)
    report = pour.audit(original=vit, unlearned=pour.forget(vit, classes=[2]), data=data, **QUIET)
    assert [note.split(",")[0] for note in report.notes] == ["the train loader returns other inputs in each pass"]


def test_numpy_is_left_as_it_was(vit: nn.Module) -> None:
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    pour.unlearn(vit, classes=[2], forget=loader(Rows((2,))), method="pour-p", **QUIET)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
