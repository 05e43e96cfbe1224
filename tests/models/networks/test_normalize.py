from torch import nn

from pour.models import NormalizedModel
from pour.models.networks.segmentation import SegmentationModel

CONSTANTS = ([0.5] * 3, [0.25] * 3)


def test_the_input_size_is_shown():
    body = nn.Conv2d(3, 5, 1)
    assert repr(NormalizedModel(body, *CONSTANTS)) != repr(NormalizedModel(body, *CONSTANTS, resize=3))
    assert "resize=3" in repr(NormalizedModel(body, *CONSTANTS, resize=3))


def test_a_segmentation_network_shows_its_own_constants():
    shown = repr(SegmentationModel(nn.Conv2d(3, 5, 1), *CONSTANTS, multiple=16, enlarge=2))
    assert "multiple=16, enlarge=2" in shown
    assert "resize" not in shown
