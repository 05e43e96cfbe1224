"""The contract of an unlearning method."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pour.unlearning.request import Need

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Method"]


@dataclass(kw_only=True)
class Method(ABC):
    """A way to forget: a dataclass of options that is called on a model.

    The model passed to :meth:`__call__` is a copy that may be changed and returned, or replaced.
    """

    name: ClassVar[str]
    """What the registry and the command line call it."""
    paper: ClassVar[str]
    """Where it comes from."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """The data it reads; reading anything else raises."""
    accepts: ClassVar[tuple[Need, ...]] = ()
    """The data that it also reads if the request has them."""
    cost: ClassVar[str] = ""
    """What it costs, in words."""
    pixelwise: ClassVar[bool] = False
    """Whether it also works where labels belong to pixels: on segmentation networks."""
    newer_options: ClassVar[dict[str, Any]] = {}
    """Options that are newer than stored results, each with the value that stands for the method as it was before.

    These values must not change when a default does: stored results without the option have them.
    """

    @abstractmethod
    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Return a model that has forgotten what the request names."""

    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def stored_options(self) -> dict[str, Any]:
        """Return the options by name as stored results contain them.

        An option of ``newer_options`` is left out at the value given there, and contained at any other value. Results
        from before the option therefore count as results of the method as it was.
        """
        effective = self.options()
        for name, value in self.newer_options.items():
            if effective[name] == value:
                del effective[name]
        return effective
