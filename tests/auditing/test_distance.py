from dataclasses import replace

import pytest
import torch
from tapped_models import make_seen, make_tapped

from pour.auditing.distance import METRICS, Discrepancy, _applicable_form, decide, discrepancies
from pour.errors import UsageError
from pour.geometry import decompose_discrepancy, energy_distance, mmd, sliced_wasserstein
from pour.geometry.discrepancy import median_bandwidth


def changed(tapped, function, scores=None):
    """The same model with its features mapped."""
    splits = {
        name: make_seen(function(s.features), s.labels, s.scores if scores is None else scores(s))
        for name, s in tapped.splits.items()
    }
    return type(tapped)(**{**vars(tapped), "splits": splits})


def never(s):
    return s.scores.index_fill(1, torch.tensor([2]), -100.0)


@pytest.fixture
def retrained():
    return changed(make_tapped(role="retrained"), lambda x: x, never)


def test_shift_scale_and_rotation_do_not_count(retrained):
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))).Q
    turned = changed(retrained, lambda x: 3 * x @ rotation + 2)
    for metric, found in discrepancies(turned, retrained, "features").items():
        assert found.metric == metric
        assert found.total == pytest.approx(0, abs=2e-3)
    plain = discrepancies(turned, retrained, "features", align="none")
    assert plain["mmd"].total > 0.5


def turned(tapped, split, which):
    """The same model with some rows of a split rotated."""
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))).Q
    seen = tapped.splits[split]
    rows = torch.where(which[:, None], seen.features @ rotation, seen.features)
    return replace(tapped, splits={**tapped.splits, split: replace(seen, features=rows, raw=rows)})


def test_the_alignment_does_not_look_at_forgotten_images(retrained):
    model = turned(retrained, "train", retrained.mask("train", "forget"))
    for found in discrepancies(model, retrained, "features").values():
        assert found.total == pytest.approx(0, abs=1e-6)


def test_the_alignment_does_not_look_at_test_images(retrained):
    """Training images are alike, so that nothing is aligned but the unit of length, which the bandwidth takes up."""
    model = turned(retrained, "test", torch.ones(100, dtype=torch.bool))
    plain = discrepancies(model, retrained, "features", align="none")["mmd"].total
    assert plain > 0.1
    assert discrepancies(model, retrained, "features")["mmd"].total == pytest.approx(plain, rel=1e-4)


def test_a_difference_on_forgotten_images_alone_is_seen(retrained):
    def moved(x):
        out = x.clone()
        out[torch.arange(len(x)) % 5 == 2] += 2
        return out

    near, far = (discrepancies(changed(retrained, f), retrained, "features") for f in (lambda x: x, moved))
    for metric in METRICS:
        assert far[metric].total > near[metric].total + 0.01


@pytest.mark.parametrize("predicts", [True, False])
def test_terms_hold_the_bound(retrained, predicts):
    other = make_tapped(seed=5)
    other = other if predicts else changed(other, lambda x: x, never)
    for found in discrepancies(other, retrained, "features").values():
        assert found.beta == 0
        assert (found.alpha > 0) == predicts
        assert found.lower - 1e-9 <= found.total <= found.upper + 1e-9
        assert found.upper == pytest.approx(found.separation + found.forgotten + found.retained)
        assert found.n == 100


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_a_form_of_the_bound_is_used_where_one_applies(alpha, beta):
    p, q = torch.randn(8, 3), torch.randn(8, 3)
    in_p, in_q = torch.arange(8) < 8 * alpha, torch.arange(8) < 8 * beta

    def works(form):
        try:
            decompose_discrepancy(p, q, in_p, in_q, form=form)
        except UsageError:
            return False
        return True

    form = _applicable_form(alpha, beta)
    if form is None:
        assert not works("retrained")
        assert not works("unlearned")
    else:
        assert works(form)
        assert form == "retrained" or not works("retrained")


def test_a_model_with_one_answer_has_a_total_without_terms(retrained):
    always = changed(make_tapped(seed=5), lambda x: x, lambda s: s.scores.index_fill(1, torch.tensor([2]), 100.0))
    every = discrepancies(always, retrained, "features", align="none")
    n = next(iter(every.values())).n
    assert n == len(always.labels("test")), "all images, so that the rows are known"
    p, q = always.rows("test"), retrained.rows("test")
    bandwidth = every["mmd"].bandwidth or median_bandwidth(q)
    direct = {"mmd": lambda: mmd(p, q, bandwidth=bandwidth), "energy": lambda: energy_distance(p, q)}
    direct["sliced-wasserstein-1"] = lambda: sliced_wasserstein(p, q, order=1)
    for metric, found in every.items():
        assert found.alpha == 1
        assert found.total == pytest.approx(float(direct[metric]()), rel=1e-6)
        assert found.upper is None
        assert found.form is None


def test_values_for_different_models_share_bandwidth(retrained):
    one, two = (discrepancies(make_tapped(seed=s), retrained, "features")["mmd"] for s in (5, 6))
    assert one.bandwidth == two.bandwidth


def test_constant_features_cannot_be_aligned(retrained):
    with pytest.raises(UsageError, match="without variation cannot be aligned"):
        discrepancies(changed(retrained, torch.ones_like), retrained, "features")


def test_align_has_two_choices(retrained):
    with pytest.raises(UsageError, match="align is 'affine'; choose one of procrustes, none"):
        discrepancies(retrained, retrained, "features", align="affine")


FOUND = Discrepancy(metric="mmd", view="features", n=10, alpha=0.0, beta=0.0, total=0.2)


@pytest.mark.parametrize(
    ("floor", "epsilon", "decision", "limit"),
    [
        (None, None, "undecided", None),
        (0.2, None, "met", 0.2),
        (0.3, None, "met", 0.3),
        (0.1, None, "not met", 0.1),
        (0.1, 0.25, "met", 0.25),
        (None, 0.15, "not met", 0.15),
    ],
)
def test_definition_2_1_is_a_decision_against_the_floor(floor, epsilon, decision, limit):
    decided = decide(FOUND, original=0.5, floor=floor, epsilon=epsilon)
    assert decided.decision == decision
    assert decided.epsilon == limit
    assert (decided.floor, decided.original, decided.total) == (floor, 0.5, 0.2)
