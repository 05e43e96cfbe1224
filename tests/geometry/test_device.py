"""The same numbers on a GPU as on the CPU, without moving anything by hand."""

import pytest
import torch

from pour.geometry import (
    Projector,
    ProjectorFitter,
    decompose_discrepancy,
    energy_distance,
    mmd,
    neural_collapse,
    procrustes_distance,
    simplex_etf,
    sliced_wasserstein,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat(40)
    weight = torch.randn(5, 16, generator=generator)
    return weight[labels] + torch.randn(200, 16, generator=generator), labels, weight


def test_the_projector_stays_where_its_directions_are(drawn):
    features, labels, weight = drawn
    projector = Projector.from_directions(weight[:2].cuda())
    assert projector.basis.is_cuda
    assert projector(features.cuda()).is_cuda
    expected = Projector.from_directions(weight[:2])(features)
    assert torch.allclose(projector(features.cuda()).cpu(), expected, atol=1e-5)
    assert projector(features).device.type == "cpu"
    assert projector.then(Projector.from_directions(weight[2])).basis.is_cuda
    fitter = ProjectorFitter([1], centered=True).update(features.cuda(), labels)
    assert torch.allclose(fitter.means, ProjectorFitter([1]).update(features, labels).means)
    turned = simplex_etf(5, 16, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    assert torch.allclose((turned @ turned.T).diagonal(), torch.ones(5, device="cuda"), atol=1e-6)


def test_collapse_is_the_same(drawn):
    features, labels, weight = drawn
    expected = neural_collapse(features, labels, weight).to_dict()
    assert neural_collapse(features.cuda(), labels.cuda(), weight.cuda()).to_dict() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("distance", [mmd, energy_distance, sliced_wasserstein])
def test_distances_are_the_same(drawn, distance):
    features, _, _ = drawn
    x, y = features[:90], features[90:]
    assert float(distance(x.cuda(), y.cuda())) == pytest.approx(float(distance(x, y)), rel=1e-8)
    assert float(distance(x.cuda(), y)) == pytest.approx(float(distance(x, y)), rel=1e-8)


def test_alignment_and_bound_are_the_same(drawn):
    features, labels, _ = drawn
    x, y = features[:100], features[100:]
    assert float(procrustes_distance(x.cuda(), y.cuda())) == pytest.approx(float(procrustes_distance(x, y)), rel=1e-6)
    mask = labels[:100] == 0
    found = decompose_discrepancy(x.cuda(), y.cuda(), mask.cuda(), mask)
    assert found.to_dict() == pytest.approx(decompose_discrepancy(x, y, mask, mask).to_dict(), rel=1e-7)
