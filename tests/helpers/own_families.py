"""Small networks that users write themselves, each with one thing that a head may have in front, inside or behind."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from model_families import ConvHead, OddModel, TiedHead, TokenHead, mlp
from network_family import CLASSES, FORGOTTEN, Family, images, prepared, without
from torch import Tensor, nn
from torch.nn.utils import prune  # noqa: F401 - not imported by torch.nn itself

from pour.models import NormalizedModel, ResNet

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 16
IMAGE = 3 * 8 * 8


class Chain(nn.Module):
    """An encoder, a head, and a function of the scores."""

    def __init__(
        self, head: nn.Module, after: Callable[[Tensor], Any] = lambda scores: scores, encoder: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder or dense()
        self.head = head
        self.after = after

    def forward(self, images: Tensor) -> Any:
        return self.after(self.head(self.encoder(images)))


def dense(width: int = WIDTH) -> nn.Module:
    layers = OrderedDict(pool=nn.AvgPool2d(4), flat=nn.Flatten(), linear=nn.Linear(IMAGE, width), tanh=nn.Tanh())
    return nn.Sequential(layers)


def linear(width: int = WIDTH, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(width, CLASSES, bias=bias)


def chain(head: Callable[[], nn.Module] = linear, **options: Any) -> Callable[[], nn.Module]:
    return lambda: prepared(Chain(head(), **options))


class Inline(nn.Module):
    """A network that computes its scores from a parameter in ``score``, behind an embedding that is a linear layer."""

    def __init__(self, *, layer: bool = False) -> None:
        super().__init__()
        self.body = dense(24)
        self.emb = nn.Linear(24, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES, bias=False) if layer else nn.Module()
        if not layer:
            self.out.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def features(self, images: Tensor) -> Tensor:
        return self.emb(self.body(images))

    def score(self, z: Tensor) -> Tensor:
        return F.linear(z, self.out.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.score(self.features(images))


class Cosine(Inline):
    def score(self, z: Tensor) -> Tensor:
        return 16 * F.linear(F.normalize(z), F.normalize(self.out.weight))


class NormalisedRows(Inline):
    def score(self, z: Tensor) -> Tensor:
        return F.linear(z, F.normalize(self.out.weight))


class Prototypes(Inline):
    """Scores are negative squared distances."""

    def score(self, z: Tensor) -> Tensor:
        return -torch.cdist(z, self.out.weight).square()


def inline_oracle(model: Inline, inputs: Tensor) -> Tensor:
    return model.score(model.features(inputs) @ without(model.out.weight))


class CosineLayer(nn.Linear):
    """A cosine head as a subclass of the linear layer."""

    def forward(self, z: Tensor) -> Tensor:
        return 16 * F.linear(F.normalize(z, dim=-1), F.normalize(self.weight, dim=-1))


class ArcFace(nn.Module):
    """A cosine head that is no linear layer, with a margin for the target in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, z: Tensor, target: Tensor | None = None) -> Tensor:
        cosine = F.linear(F.normalize(z), F.normalize(self.weight))
        if target is not None:
            cosine = torch.cos(torch.acos(cosine) + 0.5 * F.one_hot(target, CLASSES))
        return 30 * cosine


class TwoBranches(nn.Module):
    """Two heads on two feature vectors.

    Args:
        join: What the network makes of their scores.
    """

    def __init__(self, join: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = dense(), dense(12)
        self.head, self.head_dist = linear(), linear(12)
        self.join = join

    def forward(self, images: Tensor) -> Any:
        return self.join(self.head(self.first(images)), self.head_dist(self.second(images)))


def branches(join: Callable[[Tensor, Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: prepared(TwoBranches(join))


class Auxiliary(nn.Module):
    """A second head on an earlier feature, returned next to the scores in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = dense(), nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU())
        self.auxiliary, self.head = linear(), linear(12)

    def forward(self, images: Tensor) -> Any:
        early = self.early(images)
        scores = self.head(self.late(early))
        return (scores, self.auxiliary(early)) if self.training else scores


class Ensemble(nn.Module):
    """Two networks whose scores are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([Chain(linear()), Chain(linear())])

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([member(images) for member in self.members]).mean(dim=0)


class SiameseViews(Chain):
    """The head scores an image and its mirror image."""

    def forward(self, images: Tensor) -> Tensor:
        return (super().forward(images) + super().forward(images.flip(-1))) / 2


class Gated(nn.Module):
    """Features multiplied by a gate, which is a linear layer of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.gate = dense(), linear(), nn.Linear(WIDTH, WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        z = self.encoder(images)
        return self.head(z * self.gate(z).sigmoid())


class Unused(Chain):
    """A linear layer of the head's shape that takes no part."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.projection_head = linear()


class LinearBehind(Chain):
    """A head whose scores a second linear layer mixes."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(linear(), nn.Linear(CLASSES, CLASSES)))


class Refined(Chain):
    """A head whose scores get a correction by a small layer, as in a residual adapter."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.adapter = nn.Linear(CLASSES, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        scores = self.head(self.encoder(images))
        return scores + self.adapter(scores.tanh())


class ScoresOfFeatures(Chain):
    """A network that adds the score of a context, computed from other features, to the head's."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.prior = nn.Sequential(dense(5), nn.Linear(5, 11), nn.ReLU(), linear(11))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images)) + self.prior(images)


class BilinearHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = dense()
        self.head = nn.Bilinear(WIDTH, WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        z = self.encoder(images)
        return self.head(z, z)


class Conv1dHead(nn.Module):
    """A 1x1 convolution over the patches of an image, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.head = nn.Conv1d(WIDTH, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.patches(images).tanh().flatten(2)).mean(dim=2)


class Recurrent(nn.Module):
    """The last state of a recurrent network over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.GRU(3 * 32, WIDTH, batch_first=True)
        self.head = linear()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.rows(images.transpose(1, 2).flatten(2))[0][:, -1])


class Words(nn.Module):
    """A classifier of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = linear()

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.mix(self.words(text)).relu().mean(dim=1))


class Lightning(nn.Module):
    """What a LightningModule looks like: the network is a part, and some attributes exist only during training."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.loss = nn.CrossEntropyLoss()
        self.history: list[float] = []

    @property
    def trainer(self) -> object:
        raise RuntimeError(f"{type(self).__name__} is not attached to a `Trainer`.")

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return self.loss(self(batch[0]), batch[1])


class PartlyScripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.jit.script(mlp().eval())

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


class NoHead(nn.Module):
    """A network without anything linear: mean colours against stored ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("colours", torch.rand(CLASSES, 3))

    def forward(self, images: Tensor) -> Tensor:
        return -torch.cdist(images.mean(dim=(2, 3)), self.colours)


class ScaledLayer(nn.Linear):
    """A linear layer whose scores have a learned factor."""

    def __init__(self) -> None:
        super().__init__(WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z) * self.scale


class LowRank(nn.Module):
    """A linear layer with a low-rank correction, as adapters add it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = linear(), nn.Linear(WIDTH, 3, bias=False), linear(3, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.base(z) + self.up(self.down(z))


class Autocast(nn.Module):
    """A network that computes in bfloat16 with weights in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(images)


def normed(norm: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = Chain(linear())
        norm(model.head)
        return model.eval()

    return build


class UnitRows(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return F.normalize(weight)


def with_bias(value: float, label: int, dtype: torch.dtype = torch.float32) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = prepared(mlp())
        model.out.bias.data[label] = value
        return model.to(dtype)

    return build


def quantised(*, static: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torch.ao import quantization

        if not static:
            return quantization.quantize_dynamic(mlp().eval(), {nn.Linear}, dtype=torch.qint8)
        torch.backends.quantized.engine = next(e for e in torch.backends.quantized.supported_engines if e != "none")
        model = nn.Sequential(quantization.QuantStub(), *mlp(), quantization.DeQuantStub()).eval()
        model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
        observed = quantization.prepare(model)
        observed(images())
        return quantization.convert(observed)

    return build


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return mlp().eval()


def lazy(*, head: bool, initialised: bool = False) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = Chain(
            nn.LazyLinear(CLASSES) if head else linear(),
            encoder=nn.Sequential(nn.Flatten(), nn.LazyLinear(WIDTH), nn.Tanh()),
        ).eval()
        if initialised:
            model(images())
            return prepared(model)
        return model

    return build


def in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return mlp().eval()


def traced() -> nn.Module:
    return torch.jit.trace(mlp().eval(), images())


def exported() -> nn.Module:
    return torch.export.export(mlp().eval(), (images(),)).module()


def lowered(dtype: torch.dtype) -> dict[str, Any]:
    return {"build": lambda: prepared(mlp()).to(dtype), "inputs": lambda: images(dtype=dtype), "is_half": True}


def _permuted_oracle(model: Chain, inputs: Tensor) -> Tensor:
    rows = [CLASSES - 1 - label for label in FORGOTTEN]
    return model.head(model.encoder(inputs) @ without(model.head.weight, rows)).flip(1)


NO_EXAMPLE = r"pass example="
UNPROVED = {"found": NO_EXAMPLE, "named": NO_EXAMPLE}
"""The code alone does not prove that the head gives the scores."""
UNNAMED = {"found": NO_EXAMPLE}
CHANGED = UNPROVED | dict.fromkeys(("example", "named, example"), r"[Mm]ove the computation|put nn\.Identity")
"""The scores change behind the head in a way that another score or class decides."""
NOT_A_SUM = CHANGED | {"named, example": r"name the layers that give them"}
MASK = {"mask": r'forgotten_logit="keep"'}
NO_LAYER = r"[Mm]ove the computation|pass example=|its linear layers include|pass the name of one"
"""No layer computes the scores."""

OUT = {"heads": ("out",), "wrong": "hidden"}
HEAD = {"heads": ("head",), "wrong": "encoder.linear"}
HEADS = {"heads": ("head", "head_dist"), "wrong": "head"}
INLINE = {"wrong": "emb", "oracle": inline_oracle}

OWN_FAMILIES: dict[str, Family] = {
    # The layer.
    "mlp": Family(build=lambda: prepared(mlp()), **OUT),
    "no-bias": Family(build=lambda: prepared(mlp(bias=False)), **OUT),
    "conv-map": Family(build=lambda: prepared(ConvHead()), heads=("score",), wrong="body.0"),
    "conv-pooled": Family(build=lambda: prepared(ConvHead(pooled=True)), heads=("score",), wrong="body.0"),
    "tokens": Family(build=lambda: prepared(TokenHead()), heads=("readout",), wrong="patches"),
    "conv1d": Family(
        build=lambda: prepared(Conv1dHead()), heads=("head",), wrong="patches", refused=r"[Mm]ove the computation"
    ),
    "conv-3x3": Family(
        build=chain(lambda: nn.Conv2d(8, CLASSES, 3), encoder=nn.Conv2d(3, 8, 8, stride=8)),
        heads=("head",),
        refused=r"[Mm]ove the computation",
    ),
    "bilinear": Family(build=lambda: BilinearHead().eval(), heads=("head",), wrong="encoder.linear", refused=NO_LAYER),
    "tied": Family(build=lambda: TiedHead().eval(), heads=("decoder",), wrong="encoder.1"),
    "weight-norm": Family(build=normed(nn.utils.parametrizations.weight_norm), **HEAD),
    "spectral-norm": Family(build=normed(nn.utils.parametrizations.spectral_norm), **HEAD),
    "old-weight-norm": Family(build=normed(nn.utils.weight_norm), **HEAD),
    "unit-rows": Family(
        build=normed(lambda head: nn.utils.parametrize.register_parametrization(head, "weight", UnitRows())), **HEAD
    ),
    "pruned": Family(build=normed(lambda head: nn.utils.prune.l1_unstructured(head, "weight", 0.3)), **HEAD),
    "low-rank-adapter": Family(
        build=lambda: prepared(Chain(LowRank())), heads=("head.base", "head.up"), wrong="head.base", refused=UNNAMED
    ),
    "scaled-layer": Family(build=chain(ScaledLayer), **HEAD),
    "two-layer": Family(
        build=chain(lambda: nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), linear(12))),
        heads=("head.2",),
        wrong="head.0",
    ),
    "two-linear": Family(
        build=chain(lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.Linear(CLASSES, CLASSES))),
        heads=("head.1",),
        wrong="head.0",
    ),
    "one-logit": Family(
        build=lambda: Chain(nn.Linear(WIDTH, 1)).eval(), heads=("head",), refused=r"one score per class"
    ),
    # In front of the layer.
    "gate": Family(build=lambda: prepared(Gated()), heads=("head",), wrong="gate"),
    "unused-layer": Family(build=lambda: prepared(Unused()), heads=("head",), wrong="projection_head"),
    "recurrent": Family(build=lambda: prepared(Recurrent()), heads=("head",)),
    "words": Family(
        build=lambda: prepared(Words()), heads=("head",), wrong="mix", inputs=lambda: torch.arange(12).view(3, 4)
    ),
    "two-views": Family(build=lambda: prepared(SiameseViews(linear())), **HEAD),
    "pour-resnet": Family(build=lambda: prepared(ResNet(CLASSES, width=8)), heads=("head",), wrong="no_such_layer"),
    "pour-normalised": Family(
        build=lambda: prepared(NormalizedModel(ResNet(CLASSES, width=8), [0.5] * 3, [0.2] * 3)), heads=("model.head",)
    ),
    "no-linear-layer": Family(build=NoHead, refused=r"[Mm]ove the computation"),
    # Behind the layer.
    "temperature": Family(build=chain(after=lambda scores: scores / 0.1), **HEAD),
    "negative-temperature": Family(build=chain(after=lambda scores: -scores), **HEAD, refused=CHANGED),
    "tiny-temperature": Family(build=chain(after=lambda scores: scores * 1e-20), **HEAD, refused=UNPROVED | MASK),
    "factor-per-class": Family(build=chain(after=lambda scores: scores * torch.arange(1, 8)), **HEAD, refused=CHANGED),
    "signs-per-class": Family(
        build=chain(after=lambda scores: scores * torch.tensor([1, -1, 1, 1, 1, 1, 1])), **HEAD, refused=CHANGED
    ),
    "relu": Family(build=chain(after=F.relu), **HEAD, refused=CHANGED),
    "relu6": Family(build=chain(after=F.relu6), **HEAD, refused=CHANGED),
    "leaky-relu": Family(
        build=chain(after=functools.partial(F.leaky_relu, negative_slope=0.1)), **HEAD, refused=UNPROVED
    ),
    "absolute": Family(build=chain(after=torch.abs), **HEAD, refused=CHANGED),
    "softmax": Family(build=chain(after=functools.partial(F.softmax, dim=1)), **HEAD, probabilities=True),
    "sigmoid": Family(build=chain(after=torch.sigmoid), **HEAD, probabilities=True),
    "tanh": Family(build=chain(after=torch.tanh), **HEAD, refused=UNPROVED | MASK),
    "log-softmax": Family(build=chain(after=functools.partial(F.log_softmax, dim=1)), **HEAD),
    "layer-norm": Family(
        build=chain(after=lambda scores: F.layer_norm(scores, (CLASSES,))), **HEAD, refused=UNPROVED | MASK
    ),
    "clamp": Family(build=chain(after=lambda scores: scores.clamp(-5, 5)), **HEAD, refused=UNPROVED | MASK),
    "permuted-classes": Family(
        build=chain(after=lambda scores: scores.flip(1)), **HEAD, oracle=_permuted_oracle, refused=CHANGED
    ),
    "dict": Family(build=chain(after=lambda scores: {"logits": scores, "loss": None}), **HEAD),
    "odd-dict": Family(
        build=lambda: prepared(OddModel()), heads=("mystery.inner.q7.zed",), wrong="side", refused=UNNAMED
    ),
    "list": Family(build=chain(after=lambda scores: [scores, scores.argmax(dim=1)]), **HEAD, refused=UNPROVED),
    "dropout-behind": Family(build=chain(lambda: nn.Sequential(linear(), nn.Dropout(0.5))), heads=("head.0",)),
    "refined": Family(build=lambda: prepared(Refined()), heads=("head",), wrong="adapter", refused=CHANGED),
    "multi-label": Family(build=lambda: prepared(mlp()), **OUT),
    # Several heads.
    "distilled": Family(build=branches(lambda first, second: (first + second) / 2), **HEADS, refused=UNNAMED),
    "weighted-heads": Family(build=branches(lambda first, second: first + 0.3 * second), **HEADS, refused=UNNAMED),
    "subtracted-heads": Family(build=branches(lambda first, second: first - second), **HEADS, refused=NOT_A_SUM),
    "multiplied-heads": Family(build=branches(lambda first, second: first * second), **HEADS, refused=NOT_A_SUM),
    "probabilities-averaged": Family(
        build=branches(lambda first, second: first.softmax(dim=1) + second.softmax(dim=1)),
        **HEADS,
        probabilities=True,
        refused=UNNAMED,
    ),
    "highest-of-two": Family(build=branches(torch.maximum), **HEADS, refused=UNPROVED),
    "two-outputs": Family(
        build=branches(lambda first, second: {"logits": first, "second_logits": second}),
        heads=("head",),
        wrong="head_dist",
        scores=lambda output: [output["logits"]],
    ),
    "auxiliary": Family(build=lambda: prepared(Auxiliary()), heads=("head",), wrong="auxiliary"),
    "ensemble": Family(
        build=lambda: prepared(Ensemble()),
        heads=("members.0.head", "members.1.head"),
        wrong="members.1.head",
        refused=UNPROVED,
    ),
    "prior": Family(
        build=lambda: prepared(ScoresOfFeatures()), heads=("head", "prior.3"), wrong="head", refused=UNNAMED
    ),
    # Scores from a parameter.
    "parameter": Family(build=lambda: Inline().eval(), **INLINE, refused=NO_LAYER),
    "parameter-of-layer": Family(
        build=lambda: Inline(layer=True).eval(), heads=("out",), **INLINE, refused=UNPROVED | MASK
    ),
    "cosine": Family(build=lambda: Cosine().eval(), **INLINE, refused=NO_LAYER),
    "cosine-of-layer": Family(build=lambda: Cosine(layer=True).eval(), heads=("out",), **INLINE, refused=CHANGED),
    "normalised-rows": Family(
        build=lambda: NormalisedRows(layer=True).eval(), heads=("out",), **INLINE, refused=CHANGED
    ),
    "cosine-module": Family(build=chain(lambda: CosineLayer(WIDTH, CLASSES)), **HEAD),
    "arcface": Family(build=lambda: Chain(ArcFace()).eval(), **HEAD),
    "prototypes": Family(build=lambda: Prototypes().eval(), **INLINE, refused=NO_LAYER),
    # The state of the network.
    "quantised-dynamic": Family(build=quantised(static=False), **OUT, refused=r"quantis"),
    "quantised-static": Family(build=quantised(static=True), refused=r"quantis"),
    "meta": Family(build=on_meta, **OUT, refused=r"load"),
    "lazy-head": Family(build=lazy(head=True), **HEAD, refused=r"run the model once"),
    "lazy-encoder": Family(build=lazy(head=False), **HEAD, refused=r"run the model once"),
    "lazy-initialised": Family(build=lazy(head=True, initialised=True), **HEAD),
    "half": Family(**lowered(torch.float16), **OUT),
    "bfloat16": Family(**lowered(torch.bfloat16), **OUT),
    "double": Family(build=lambda: prepared(mlp()).double(), inputs=lambda: images(dtype=torch.float64), **OUT),
    "autocast": Family(build=lambda: prepared(Autocast()), heads=("net.out",), wrong="net.hidden", is_half=True),
    "inference-tensors": Family(build=in_inference_mode, **OUT),
    "nan-bias": Family(build=with_bias(float("nan"), 2), **OUT, refused=r"load a checkpoint with finite biases"),
    "infinite-bias": Family(build=with_bias(float("inf"), 2), **OUT, refused=r"load a checkpoint with finite biases"),
    "scores-below-mask": Family(build=with_bias(-1e17, 2), **OUT),
    "all-scores-below-mask": Family(build=lambda: _shifted(prepared(mlp()), -1e17), **OUT, refused=MASK),
    "half-scores-below-mask": Family(
        build=lambda: _shifted(prepared(mlp()), -60000.0).half(),
        inputs=lambda: images(dtype=torch.float16),
        is_half=True,
        **OUT,
        refused=MASK,
    ),
    # Wrappers.
    "compiled": Family(
        build=lambda: torch.compile(prepared(mlp()), backend="eager"),
        **OUT,
        oracle=lambda model, inputs: _unwrapped_oracle(model._orig_mod, inputs),
    ),
    "data-parallel": Family(
        build=lambda: nn.DataParallel(prepared(mlp())),
        heads=("module.out",),
        wrong="module.hidden",
    ),
    "averaged-weights": Family(
        build=lambda: torch.optim.swa_utils.AveragedModel(prepared(mlp())), heads=("module.out",), wrong="module.hidden"
    ),
    "lightning": Family(build=lambda: prepared(Lightning()), heads=("net.out",), wrong="net.hidden"),
    "fx": Family(build=lambda: torch.fx.symbolic_trace(prepared(mlp())), **OUT),
    "exported": Family(build=exported, refused=r"nn\.Module"),
    "torchscript-traced": Family(build=traced, refused=r"pass the nn\.Module it came from"),
    "torchscript": Family(build=lambda: torch.jit.script(mlp().eval()), refused=r"pass the nn\.Module it came from"),
    "torchscript-part": Family(build=PartlyScripted, refused=r"pass the nn\.Module it came from"),
}


def _shifted(model: nn.Module, value: float) -> nn.Module:
    model.out.bias.data += value
    return model


def _unwrapped_oracle(model: nn.Module, inputs: Tensor) -> Tensor:
    model = copy.deepcopy(model)
    return model.out(model[:-1](inputs) @ without(model.out.weight))
