"""pour weights."""

from __future__ import annotations

import pytest
from command_line import UNREAD, refusal

pytestmark = pytest.mark.usefixtures("no_data")


def test_weights_are_not_listed_into_a_file():
    assert f"--out {UNREAD} without a name" in refusal("weights", "--out", "w.safetensors")
