from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import pour
from pour.data.loader import NO_LABEL
from pour.errors import UsageError
from pour.training import Recipe, Run
from pour.training.tasks import task as tasks
from pour.training.tasks.classify import Classify
from pour.training.tasks.task import find_task, get_task, list_tasks, register_task


@pytest.mark.parametrize("name", ["classify", "segment", "match"])
def test_a_task_is_found_by_its_name_and_keeps_its_settings(name: str) -> None:
    task = get_task(name)
    assert task.name == name
    assert name in list_tasks()
    assert task == get_task(name)
    assert set(task.metrics)


def test_a_wrong_name_or_setting_is_refused() -> None:
    with pytest.raises(UsageError, match=r"There is no task 'paint'; the tasks are .*classify"):
        get_task("paint")
    with pytest.raises(UsageError, match="The task 'segment' has no setting 'head'; it has weights, enlarge"):
        get_task("segment", head="free")
    with pytest.raises(UsageError, match="The task 'segment' has the value 'two' for enlarge"):
        get_task("segment", enlarge="two")
    with pytest.raises(UsageError, match="pass the backbone's weights"):
        get_task("classify", freeze_backbone=True)


def test_a_task_may_be_defined_again_but_not_by_another_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_TASKS", dict(tasks._TASKS))

    @dataclass(frozen=True, kw_only=True)
    class Other(Classify):
        """Classification again."""

        name: ClassVar[str] = "other-task"

    assert register_task(register_task(Other)) is Other
    assert get_task("other-task", image_size=8) == Other(image_size=8)

    @dataclass(frozen=True, kw_only=True)
    class Thief(Classify):
        """Classification under a name that is in use."""

    with pytest.raises(UsageError, match="There is already a task 'classify'"):
        register_task(Thief)


def test_a_task_of_another_package_that_raises_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Classify):
        name: ClassVar[str] = "broken"

        @classmethod
        def accepts(cls, data: str, arch: str | None) -> bool:
            raise RuntimeError("no")

        fits = accepts  # type: ignore[assignment]

    monkeypatch.setattr(tasks, "_TASKS", {"broken": Broken, **tasks._TASKS})
    with pytest.warns(UserWarning, match=r"The task 'broken' is left out: accepts raised RuntimeError\."):
        assert find_task("digits") == "classify"
    with (
        pytest.warns(UserWarning, match="The task 'broken' is left out: fits raised TypeError"),
        pytest.raises(UsageError, match="No task has labels of shape"),
    ):
        tasks.task_of_labels(torch.zeros(2, 3, dtype=torch.int64))


def test_the_task_of_a_dataset() -> None:
    assert find_task("voc2012") == "segment"
    assert find_task("cifar10", "clip-resnet18") == "match"
    assert find_task("folder:somewhere", "resnet18") == "classify"


def test_images_are_forget_samples_by_their_label_and_scenes_by_any_pixel() -> None:
    assert get_task("classify").belongs(torch.tensor([0, 3, 1]), [3, 1]).tolist() == [False, True, True]
    masks = torch.tensor([[[0, 1]], [[0, NO_LABEL]]])
    assert get_task("segment").belongs(masks, [1]).tolist() == [True, False]


def test_rows_and_answers_of_images_and_scenes() -> None:
    features, labels = torch.randn(3, 4), torch.tensor([0, 1, 1])
    rows = get_task("classify").rows(features, labels)
    assert (rows.samples.tolist(), rows.labels.tolist()) == ([0, 1, 2], [0, 1, 1])
    counts = get_task("classify").confusion(torch.eye(3)[[0, 2, 1]], labels)
    assert counts.sum(dim=0).tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]

    maps = torch.arange(8.0).view(2, 1, 2, 2)
    masks = torch.full((2, 4, 4), NO_LABEL)
    masks[0, 3, 0], masks[1, 0, 3] = 1, 0
    rows = get_task("segment").rows(maps, masks)
    assert (rows.features.tolist(), rows.labels.tolist(), rows.samples.tolist()) == ([[2.0], [5.0]], [1, 0], [0, 1])
    scores = torch.zeros(2, 2, 4, 4)
    scores[:, 1] = 1
    assert get_task("segment").confusion(scores, masks).tolist() == [[[0, 0], [0, 1]], [[0, 1], [0, 0]]]


def test_a_task_by_name_trains_the_same_network_again() -> None:
    digits = pour.load_dataset("digits")
    recipe = Recipe(steps=3, batch_size=16, lr=0.1, augment=False)
    run = Run(seed=1, device="cpu", progress=False)
    first, _ = get_task("classify").train(digits, recipe, run, arch="resnet-digits", without=["3"])
    second, _ = Classify().train(digits, recipe, run, arch="resnet-digits", without=["3"])
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_a_request_has_the_data_of_its_classes() -> None:
    digits = pour.load_dataset("digits")
    task = get_task("classify")
    data = task.request_fields("resnet-digits", digits, task.classes(digits, ["3"]), validation=0)
    assert set(data["forget"].labels) == {3}
    assert 3 not in {*data["retain"].labels, *data["validation"].labels}
    held = np.isin(data["retain"].index, data["validation"].index)
    assert not held.any()
    assert data["build"]().__class__.__name__ == "ResNet"
