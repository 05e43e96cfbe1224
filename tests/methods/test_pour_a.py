"""POUR-A: the projection in front of the head, and an encoder that learns it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from digits_networks import bed_data, bed_network
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pour
from pour.errors import UsageError
from pour.models.card import change_card
from pour.models.head import find_head
from pour.models.projecting.projected_head import ProjectedHead
from pour.unlearning import ForgetRequest
from pour.unlearning.toolkit.feature_matching import MOST_ANCHOR_ERROR, Measured, copy_state, move_back
from pour.unlearning.toolkit.find_rate import find_rate
from pour.unlearning.toolkit.measured_direction import Answers, Choice, choose_by_measurement

DATA = bed_data()


@pytest.fixture(scope="module")
def mlp() -> nn.Module:
    model = bed_network("mlp", DATA, seed=5)
    # Functions below pour.unlearn find the head without images.
    change_card(model, head="fc")
    return model


def images_of(label: int) -> tuple[Tensor, Tensor]:
    rows = DATA.train_labels == label
    return DATA.train_images[rows], DATA.train_labels[rows]


def loader(*labels: int, batch_size: int = 64, limit: int | None = None) -> DataLoader[Any]:
    parts = [images_of(label) for label in labels]
    images, labelled = (torch.cat(part)[:limit] for part in zip(*parts, strict=True))
    return DataLoader(TensorDataset(images, labelled), batch_size=batch_size, shuffle=True)


def forgotten(model: nn.Module, request: ForgetRequest, **options: Any) -> nn.Module:
    return pour.unlearn(model, request, progress=False, device="cpu", **options)


def logged(model: nn.Module) -> dict[str, float]:
    return {name: value for entry in pour.history(model)[-1].log for name, value in entry.items()}


def share(model: nn.Module, label: int) -> float:
    images, _ = images_of(label)
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == label).double().mean())


class Taught(nn.Module):
    """A head of a simplex behind the identity: a network that has collapsed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Flatten()
        self.fc = nn.Linear(16, 4, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.as_tensor(pour.simplex_etf(4, 16)))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.body(images))
        return scores


def near(model: nn.Module, label: int, count: int, noise: float = 0.01) -> Tensor:
    """Images whose features lie at a row of the head of :class:`Taught`."""
    generator = torch.Generator().manual_seed(label)
    rows = find_head(model).weight[label].expand(count, -1)
    return (rows + noise * torch.randn(rows.shape, generator=generator)).view(count, 1, 4, 4)


def choose(model: nn.Module, label: int, forget: Any, anchors: list[Tensor], **options: Any) -> Choice:
    return choose_by_measurement(model, Answers(model, (label,), forget, anchors), **options)


class TestDirection:
    def test_a_collapsed_network_gets_the_papers_direction(self) -> None:
        model = Taught()
        anchors = [near(model, label, 20) for label in (1, 2, 3)]
        choice = choose(model, 0, [(near(model, 0, 20), torch.zeros(20, dtype=torch.long))], anchors)
        assert (choice.direction, choice.left, choice.changed) == ("weights", 0, 0)

    def test_an_ordinary_network_gets_decisions(self, mlp: nn.Module) -> None:
        choice = choose(mlp, 3, [images_of(3)], [DATA.train_images])
        assert choice.direction == "decisions"
        assert choice.left == 0
        assert choice.changed == 0

    def test_decisions_that_are_badly_conditioned_are_no_candidate(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 17))
        images = torch.randn(200, 1, 4, 4)
        labels = model(images).argmax(dim=1)
        chosen = images[labels == labels[0]]
        choice = choose(model, int(labels[0]), [(chosen, labels[0].expand(len(chosen)))], [images[labels != labels[0]]])
        assert choice.direction != "decisions"
        assert choice.left == 0

    def test_the_model_is_as_it_was(self, mlp: nn.Module) -> None:
        choose(mlp, 3, [images_of(3)], [DATA.train_images[:50]])
        assert isinstance(find_head(mlp).module, nn.Linear)

    def test_a_second_request_does_not_bring_the_first_class_back(self) -> None:
        """The paper's direction leaves a class its bias, and no image of the first class is at hand to notice."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
        with torch.no_grad():
            model[1].bias[0] = 1.0
        images = torch.randn(2000, 1, 4, 4)
        labels = model(images).argmax(dim=1)
        for label in (0, 1):
            own = labels == label
            request = ForgetRequest(classes=[label], forget=[(images[own], labels[own])])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                model = forgotten(model, request, steps=5)
        assert not torch.isin(model(images).argmax(dim=1), torch.tensor([0, 1])).any()

    def test_the_only_candidate_is_taken_as_it_is(self, mlp: nn.Module) -> None:
        assert choose(mlp, 3, [images_of(3)], [], candidates=["weights"]).direction == "weights"


class TestRate:
    def test_trials_end_after_two_worse_rates(self) -> None:
        tried: list[float] = []

        def trial(rate: float) -> float:
            tried.append(rate)
            return {4.0: 2.0, 3.0: 0.5, 2.0: 0.6, 1.0: 0.7, 0.5: 0.1}[rate]

        assert find_rate(trial, (4.0, 3.0, 2.0, 1.0, 0.5)) == 3.0
        assert tried == [4.0, 3.0, 2.0, 1.0]

    def test_a_higher_rate_near_the_best_is_taken(self) -> None:
        losses = {4.0: 0.9, 3.0: 0.5, 2.0: 0.45, 1.0: 0.44, 0.5: 0.6, 0.1: 0.7}
        assert find_rate(losses.__getitem__, tuple(losses)) == 3.0

    def test_a_trial_that_is_not_a_number_loses(self) -> None:
        assert find_rate({3.0: float("nan"), 2.0: 0.5, 1.0: 0.4, 0.5: 0.9}.__getitem__, (3.0, 2.0, 1.0, 0.5)) == 2.0

    def test_no_rate_that_helps_is_none(self) -> None:
        def trial(rate: float) -> float:
            if rate > 1:
                raise pour.DivergenceError("The loss became nan.")
            return 1.5

        assert find_rate(trial, (2.0, 1.0)) is None


class TestAcceptance:
    def trained(self) -> tuple[nn.Linear, dict[str, Tensor]]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        original = copy_state(model)
        nn.init.ones_(model.weight)
        return model, original

    def test_what_is_accepted_stays(self) -> None:
        model, original = self.trained()
        assert move_back(model, original, lambda: Measured(0.0, 0.0, 0.05), most_left=0.002) == (
            1.0,
            Measured(0.0, 0.0, 0.05),
        )
        assert model.weight.item() == 1

    def test_what_moves_the_anchors_too_far_goes_back_until_it_does_not(self) -> None:
        model, original = self.trained()
        part, found = move_back(
            model, original, lambda: Measured(0.0, 0.0, 0.075 * model.weight.item()), most_left=0.002
        )
        assert part == 0.65
        assert found is not None
        assert found.anchor_error <= MOST_ANCHOR_ERROR
        assert model.weight.item() == pytest.approx(0.65)

    @pytest.mark.parametrize(
        "odd", [Measured(0.5, 0.0, 0.0), Measured(0.0, 0.5, 0.0), Measured(0.0, 0.0, float("nan"))]
    )
    def test_what_is_never_accepted_becomes_the_original(self, odd: Measured) -> None:
        model, original = self.trained()
        assert move_back(model, original, lambda: odd, most_left=0.002) == (0.0, None)
        assert model.weight.item() == 0

    @pytest.mark.parametrize("odd", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite_become_the_original(self, odd: float) -> None:
        model, original = self.trained()
        nn.init.constant_(model.weight, odd)
        assert move_back(model, original, lambda: Measured(0.0, 0.0, 0.0), most_left=0.002) == (0.0, None)
        assert model.weight.item() == 0


class TestRun:
    def test_a_high_rate_is_no_wreck(self, mlp: nn.Module) -> None:
        """Acceptance brings the encoder back; the answers are POUR-P's then."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = forgotten(mlp, ForgetRequest(classes=[3], forget=loader(3)), lr=0.3, steps=20)
        assert share(model, 3) == 0
        assert logged(model)["anchor_error"] <= MOST_ANCHOR_ERROR
        images, labels = DATA.test_images, DATA.test_labels
        rest = labels != 3
        with torch.no_grad():
            before, after = ((m(images).argmax(dim=1) == labels)[rest].double().mean().item() for m in (mlp, model))
        assert after > before - 0.1

    def test_an_encoder_that_still_knows_the_class_is_named(self, mlp: nn.Module) -> None:
        with pytest.warns(
            UserWarning, match=r"without the projector [\d.]+% of the forget images.*Remedy: take more steps"
        ):
            model = forgotten(mlp, ForgetRequest(classes=[3], forget=loader(3)), steps=1, lr=1e-6)
        assert logged(model)["encoder_share"] > 0.5
        assert share(model, 3) == 0

    @pytest.mark.parametrize("batch_size", [1, 7, 500])
    def test_any_batch_size_of_the_loader(self, mlp: nn.Module, batch_size: int) -> None:
        model = forgotten(mlp, ForgetRequest(classes=[3], forget=loader(3, batch_size=batch_size)), steps=200)
        assert share(model, 3) == 0
        assert logged(model)["encoder_share"] <= 0.03

    def test_few_forget_images(self, mlp: nn.Module) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = forgotten(mlp, ForgetRequest(classes=[3], forget=loader(3, limit=2)), steps=50)
        assert share(model, 3) == 0

    def test_retained_images_become_the_anchors(self, mlp: nn.Module) -> None:
        request = ForgetRequest(classes=[3], forget=loader(3), retain=loader(0, 1, 2, 4, 5, 6, 7, 8, 9))
        model = forgotten(mlp, request, steps=200)
        assert pour.history(model)[-1].options["anchor"] == "retained"
        assert share(model, 3) == 0
        views = forgotten(mlp, request, steps=2, anchor="views", lr=1e-3)
        assert pour.history(views)[-1].options["anchor"] == "views"

    def test_retained_anchors_need_retained_images(self, mlp: nn.Module) -> None:
        with pytest.raises(UsageError, match="pass retain="):
            forgotten(mlp, ForgetRequest(classes=[3], forget=loader(3)), anchor="retained")

    def test_inputs_that_are_not_images_leave_the_encoder_unchanged(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
        inputs = torch.randn(400, 6)
        labels = model(inputs).argmax(dim=1)
        label = int(labels.mode().values)
        batches = [(inputs[labels == label], labels[labels == label])]
        with pytest.warns(UserWarning, match="not images.*retain="):
            result = forgotten(model, ForgetRequest(classes=[label], forget=batches))
        assert pour.history(result)[-1].options["anchor"] == "none"
        assert torch.equal(result[0].weight, model[0].weight)  # type: ignore[index]
        assert not bool((result(inputs).argmax(dim=1) == label).any())
        rest = [(inputs[labels != label], labels[labels != label])]
        trained = forgotten(model, ForgetRequest(classes=[label], forget=batches, retain=rest), steps=100)
        assert pour.history(trained)[-1].options["anchor"] == "retained"
        assert not torch.equal(trained[0].weight, model[0].weight)  # type: ignore[index]

    def test_an_encoder_that_may_not_be_trained_stays(self) -> None:
        torch.manual_seed(0)
        model = bed_network("mlp", DATA, seed=5)
        for parameter in model.body.parameters():  # type: ignore[union-attr]
            parameter.requires_grad_(False)
        with pytest.warns(UserWarning, match="No parameter of the encoder may be trained"):
            result = forgotten(model, ForgetRequest(classes=[3], forget=loader(3)))
        assert share(result, 3) == 0
        assert logged(result)["encoder_share"] > 0.5

    def test_all_classes_of_sorted_images_are_measured(self) -> None:
        """The first thousand images of a folder are often of one class."""
        model = bed_network("mlp", DATA, seed=5)
        parts = [images_of(label) for label in (3, 5)]
        first = (parts[0][0].repeat(10, 1, 1, 1), parts[0][1].repeat(10))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = forgotten(model, ForgetRequest(classes=[3, 5], forget=[first, parts[1]]), steps=20)
        assert share(result, 3) == share(result, 5) == 0

    def test_copies_of_what_is_no_image_are_refused(self) -> None:
        model = nn.Sequential(nn.Linear(6, 4))
        with pytest.raises(UsageError, match="not images"):
            forgotten(
                model, ForgetRequest(classes=[0], forget=[(torch.randn(4, 6), torch.zeros(4).long())]), anchor="views"
            )

    def test_a_conflicting_score_is_told_before_any_work(self, mlp: nn.Module) -> None:
        first = pour.forget(mlp, [3])
        with pytest.raises(UsageError, match="already forgot classes"):
            forgotten(first, ForgetRequest(classes=[5], forget=loader(5)), forgotten_logit="keep")

    def test_images_that_are_not_square(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
        images = torch.rand(80, 3, 9, 14)
        labels = model(images).argmax(dim=1)
        label = int(labels.mode().values)
        batches = [(images[labels == label], labels[labels == label])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = forgotten(model, ForgetRequest(classes=[label], forget=batches), steps=10)
        assert not bool((result(images).argmax(dim=1) == label).any())

    @pytest.mark.parametrize("fold", [False, True])
    def test_a_second_request_keeps_the_first(self, mlp: nn.Module, fold: bool) -> None:
        first = forgotten(mlp, ForgetRequest(classes=[3], forget=loader(3)), steps=200)
        if fold:
            first = pour.fold(first)
        second = forgotten(first, ForgetRequest(classes=[5], forget=loader(5)), steps=200)
        assert share(second, 3) == 0
        assert share(second, 5) == 0
        head = find_head(second).module
        assert isinstance(head, ProjectedHead)
        with torch.no_grad():
            assert second(DATA.test_images).abs().max() < 3 * mlp(DATA.test_images).abs().max()

    def test_a_masked_request_goes_on_masked(self, mlp: nn.Module) -> None:
        first = pour.forget(mlp, [3])
        second = forgotten(first, ForgetRequest(classes=[5], forget=loader(5)), steps=2, lr=1e-3)
        head = find_head(second).module
        assert isinstance(head, ProjectedHead)
        assert (head.forgotten, head.forgotten_logit) == ((3, 5), "mask")

    def test_several_classes(self, mlp: nn.Module) -> None:
        model = forgotten(mlp, ForgetRequest(classes=[3, 5], forget=loader(3, 5)))
        assert share(model, 3) == share(model, 5) == 0
        assert logged(model)["encoder_share"] <= 0.03

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"direction": "means"}, "direction must be auto"),
            ({"anchor": "none"}, "anchor must be auto, views or retained"),
            ({"anchors_per_image": 0}, "at least 1"),
            ({"anchor_weight": 0.0}, "above 0"),
            ({"epochs": 3, "steps": 800}, "counts steps"),
        ],
    )
    def test_odd_options_are_told(self, mlp: nn.Module, options: dict[str, Any], words: str) -> None:
        with pytest.raises(UsageError, match=words):
            forgotten(mlp, ForgetRequest(classes=[3], forget=loader(3)), **options)
