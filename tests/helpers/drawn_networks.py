"""Networks drawn from stated families, each of which knows its own scores after forgetting."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from network_family import CLASSES, FORGOTTEN, all_scores, without
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 12
SIDE = 8


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A network in words. The first value of each choice is the simplest one."""

    encoder: Literal["dense", "convolutions", "map", "tokens", "words"]
    """What comes before the head. Maps and tokens have a feature vector per position."""
    embedding: Literal["no", "linear", "linear and normalised"]
    """A linear layer right before the features."""
    gate: Literal[False, True]
    """Whether the features are multiplied by a gate, a linear layer of their width."""
    head: Literal[
        "linear",
        "linear without bias",
        "convolution",
        "two layers",
        "two linear layers",
        "parameter",
        "weight of a layer",
        "cosine layer",
        "cosine parameter",
        "cosine weight of a layer",
    ]
    """How features become scores."""
    heads: Literal["one", "averaged", "summed", "difference", "maximum", "both returned"]
    """Whether there is a second head of the same kind, on features of its own, and what the scores are then."""
    after: Literal[
        "nothing",
        "scaled",
        "negated",
        "scaled per class",
        "signs per class",
        "reversed",
        "softmax",
        "sigmoid",
        "tanh",
        "relu",
        "leaky relu",
        "absolute",
    ]
    """What happens to the scores."""
    pooled: Literal[False, True]
    """Whether the scores of all positions are averaged."""
    output: Literal["tensor", "logits", "odd dict", "list"]
    """What the network returns the scores in."""
    unused: Literal[False, True]
    """Whether a linear layer of the head's shape takes no part."""
    head_first: Literal[False, True]
    """Whether the head is registered before the encoder."""

    def __repr__(self) -> str:
        defaults = {name: get_args(hint)[0] for name, hint in get_type_hints(Architecture).items()}
        changed = {name: getattr(self, name) for name in defaults if getattr(self, name) != defaults[name]}
        return f"Architecture({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def _often_the_first(choices: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """The first choice in most networks, so that many have one difficulty and few have several."""
    return st.one_of(st.just(choices[0]), st.just(choices[0]), st.sampled_from(choices))


def architectures(**fixed: Any) -> st.SearchStrategy[Architecture]:
    """Every architecture with the fixed choices."""
    drawn = {name: _often_the_first(get_args(hint)) for name, hint in get_type_hints(Architecture).items()}
    return st.builds(Architecture, **(drawn | {name: st.just(choice) for name, choice in fixed.items()}))


ARCHITECTURES = architectures()

_AFTER: dict[str, Callable[[Tensor, int], Tensor]] = {
    "nothing": lambda scores, dim: scores,
    "scaled": lambda scores, dim: scores / 0.07,
    "negated": lambda scores, dim: -scores,
    "scaled per class": lambda scores, dim: (scores.movedim(dim, -1) * torch.arange(1, CLASSES + 1)).movedim(-1, dim),
    "signs per class": lambda scores, dim: (scores.movedim(dim, -1) * torch.tensor([1, -1, 1, 1, 1, 1, 1])).movedim(
        -1, dim
    ),
    "reversed": lambda scores, dim: scores.flip(dim),
    "softmax": lambda scores, dim: scores.softmax(dim),
    "sigmoid": lambda scores, dim: scores.sigmoid(),
    "tanh": lambda scores, dim: scores.tanh(),
    "relu": lambda scores, dim: scores.relu(),
    "leaky relu": lambda scores, dim: F.leaky_relu(scores, 0.1),
    "absolute": lambda scores, dim: scores.abs(),
}
_JOIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "averaged": lambda first, second: (first + second) / 2,
    "summed": torch.add,
    "difference": torch.sub,
    "maximum": torch.maximum,
}


class CosineLayer(nn.Linear):
    def forward(self, z: Tensor) -> Tensor:
        return 9 * F.linear(F.normalize(z, dim=-1), F.normalize(self.weight, dim=-1))


class Branch(nn.Module):
    """Encoder and head up to the scores."""

    def __init__(self, drawn: Architecture) -> None:
        super().__init__()
        self.drawn = drawn
        if drawn.head_first:
            self._add_head()
        self.encoder = {
            "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, WIDTH), nn.Tanh()),
            "convolutions": lambda: nn.Sequential(
                nn.Conv2d(3, WIDTH, 3), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
            ),
            "map": lambda: nn.Sequential(nn.Conv2d(3, WIDTH, 4, stride=4), nn.Tanh()),
            "tokens": lambda: nn.Sequential(nn.Conv2d(3, WIDTH, 4, stride=4), nn.Flatten(2)),
            "words": lambda: nn.Embedding(11, WIDTH),
        }[drawn.encoder]()
        if drawn.embedding != "no":
            self.emb = nn.Linear(WIDTH, WIDTH)
        if drawn.gate:
            self.gate = nn.Linear(WIDTH, WIDTH)
        if not drawn.head_first:
            self._add_head()

    def _add_head(self) -> None:
        kind = self.drawn.head
        if kind.startswith("two"):
            self.first = nn.Linear(WIDTH, CLASSES if kind == "two linear layers" else WIDTH)
        width = CLASSES if kind == "two linear layers" else WIDTH
        if kind.endswith("parameter"):
            self.weight = nn.Parameter(torch.randn(CLASSES, width))
        elif kind == "cosine layer":
            self.head = CosineLayer(width, CLASSES)
        elif kind == "convolution":
            self.head = nn.Conv2d(width, CLASSES, 1)
        else:
            self.head = nn.Linear(width, CLASSES, bias=kind in ("linear", "two layers", "two linear layers"))
        if self.drawn.unused:
            self.unused = nn.Linear(width, CLASSES)

    def rows(self) -> Tensor:
        return self.weight if self.drawn.head.endswith("parameter") else self.head.weight.flatten(1)

    def features(self, inputs: Tensor) -> Tensor:
        """The features, with their width in the last dimension."""
        z: Tensor = self.encoder(inputs)
        if self.drawn.encoder == "words":
            z = z.mean(dim=1)
        elif z.ndim > 2:
            z = z.movedim(1, -1)
        if self.drawn.embedding != "no":
            z = self.emb(z)
        if self.drawn.gate:
            z = z * self.gate(z).sigmoid()
        if self.drawn.embedding == "linear and normalised":
            z = F.normalize(z, dim=-1)
        if self.drawn.head == "two layers":
            z = self.first(z).relu()
        return self.first(z) if self.drawn.head == "two linear layers" else z

    def score(self, z: Tensor) -> Tensor:
        """The scores, with the classes in the last dimension."""
        kind = self.drawn.head
        if kind == "convolution":
            # One image without positions is a map of size 1.
            wide = z.reshape(len(z), -1, 1, z.shape[-1]).movedim(-1, 1)
            return self.head(wide).movedim(1, -1).reshape(*z.shape[:-1], CLASSES)
        if kind.startswith("cosine") and kind != "cosine layer":
            return 9 * F.linear(F.normalize(z, dim=-1), F.normalize(self.rows(), dim=-1))
        return F.linear(z, self.rows()) if kind in ("parameter", "weight of a layer") else self.head(z)


class DrawnNetwork(nn.Module):
    """The network of an architecture."""

    def __init__(self, drawn: Architecture) -> None:
        super().__init__()
        self.drawn = drawn
        self.branches = nn.ModuleList([Branch(drawn) for _ in range(1 if drawn.heads == "one" else 2)])

    def forward(self, inputs: Tensor) -> Any:
        return self.join([branch.score(branch.features(inputs)) for branch in self.branches])

    def join(self, scores: list[Tensor]) -> Any:
        """What the network returns, from the scores of its heads."""
        drawn = self.drawn
        if len(scores) > 1 and drawn.heads != "both returned":
            scores = [_JOIN[drawn.heads](*scores)]
        # A map has its classes in dimension 1.
        scores = [each.movedim(-1, 1) if drawn.encoder == "map" else each for each in scores]
        if drawn.pooled and scores[0].ndim > 2:
            scores = [each.flatten(2).mean(dim=2) if drawn.encoder == "map" else each.mean(dim=1) for each in scores]
        dim = 1 if drawn.encoder == "map" else -1
        scores = [_AFTER[drawn.after](each, dim) for each in scores]
        if drawn.output == "tensor" and len(scores) == 1:
            return scores[0]
        if drawn.output == "list":
            return scores
        name = "logits" if drawn.output == "logits" else "answer"
        return dict(zip((name, "second"), scores, strict=False))

    def scores_in(self, output: Any) -> list[Tensor]:
        """The scores in what the network returned: ``logits`` alone if there are any."""
        return all_scores(output["logits"] if isinstance(output, dict) and "logits" in output else output)

    def after_forgetting(self, inputs: Tensor) -> list[Tensor]:
        """The oracle: the scores in float64 if the features z of each head become P z, P from the head's own rows."""
        wide = copy.deepcopy(self).double()
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        # A class is what the network returns in its place, whichever row of the head that is.
        rows = [CLASSES - 1 - label for label in FORGOTTEN] if self.drawn.after == "reversed" else FORGOTTEN
        features = [branch.features(inputs) @ without(branch.rows(), rows) for branch in wide.branches]
        return self.scores_in(wide.join([branch.score(z) for branch, z in zip(wide.branches, features, strict=True)]))


@functools.lru_cache(maxsize=32)
def network(drawn: Architecture) -> DrawnNetwork:
    torch.manual_seed(5)
    model = DrawnNetwork(drawn)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def inputs_of(drawn: Architecture) -> Tensor:
    generator = torch.Generator().manual_seed(6)
    if drawn.encoder == "words":
        return torch.randint(0, 11, (3, 5), generator=generator)
    return torch.rand(3, 3, SIDE, SIDE, generator=generator)


def heads_of(model: DrawnNetwork) -> list[str]:
    """The dotted names of the layers that give the scores; none for a parameter."""
    return [f"branches.{index}.head" for index, branch in enumerate(model.branches) if hasattr(branch, "head")]


def other_layers(model: DrawnNetwork) -> list[str]:
    """The dotted names of the linear layers that do not."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    return [name for name in names if name not in heads_of(model)]
