"""Whatever network a user brings, ``pour.forget`` is exact, or refuses and names the remedy."""

from __future__ import annotations

import pytest
from library_families import LIBRARY_FAMILIES
from network_family import CLASSES, WAYS, Family, built, forget_exactly, mask_exactly
from own_families import OWN_FAMILIES

from pour.errors import UsageError
from pour.models import forget

FAMILIES = {**LIBRARY_FAMILIES, **OWN_FAMILIES}


def cases() -> list[object]:
    """Every family and way; the ways of one family are neighbours, so that its network is built once."""
    return [
        pytest.param(family, way, id=f"{name}-{way}", marks=pytest.mark.slow if family.is_slow else ())
        for name, family in FAMILIES.items()
        for way in WAYS
    ]


@pytest.mark.parametrize(("family", "way"), cases())
def test_a_family_is_exact_or_refused_with_the_remedy(family: Family, way: str) -> None:
    for is_mask, check in ((False, forget_exactly), (True, mask_exactly)):
        remedy = family.remedy(way, mask=is_mask)
        if remedy is None:
            check(family, way)
        else:
            with pytest.raises(UsageError, match=remedy):
                check(family, way)
    if family.remedy(way) is None:
        with pytest.raises(UsageError, match="out of range"):
            forget(built(family), [CLASSES], **family.options(way))
