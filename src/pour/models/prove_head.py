"""Prove from the code of a model, without an input, that the output of a layer is the class scores."""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from pour.models.known_places import known_place
from pour.models.modes import evaluating
from pour.models.networks.normalize import NormalizedModel
from pour.models.projecting.projected_head import masked_score

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["structure_proves"]

_MOST_PATHS = 32
# Smallest distance from 0 that a masked score may have after multiplication by a factor.
_MASK_LEFT = 1e3
_PLACEHOLDER = fx._symbolic_trace.PH
_KEYS = ("logits", "out")
_RESHAPING = {
    *("clone", "contiguous", "detach", "double", "flatten", "float", "movedim", "permute", "reshape", "squeeze"),
    *("to", "transpose", "unflatten", "unsqueeze", "view"),
}
_ATTRIBUTES = ("shape", "dtype", "device", "ndim")
_DROPOUT = {"dropout", "dropout1d", "dropout2d", "alpha_dropout"}
_INCREASING = {"softmax", "log_softmax", "sigmoid", "logsigmoid"}
# These functions are accepted on maps alone, because only there the dimensions of positions are known.
_RESIZING = {"interpolate", "avg_pool2d", "adaptive_avg_pool2d"}
_SCALING = {"mul", "truediv", "div", "multiply", "divide", "true_divide"}
_SHIFTING = {"add", "iadd", "sub"}
_PLAIN_MODULES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.Flatten, nn.Unflatten)
_INCREASING_MODULES = (nn.Softmax, nn.LogSoftmax, nn.Sigmoid, nn.LogSigmoid)
_MAP_MODULES = (nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d)


def structure_proves(model: nn.Module, name: str, *, named: bool = False) -> bool:
    """Return whether the code of `model` proves that its scores are the output of the layer `name`.

    This is proved if the layer is the known head of a library. It is also proved if the code behind the layer only
    changes the shape, averages over positions, or applies one increasing function to all scores (softmax, a positive
    factor), and the model returns the result alone. The modules around the layer are traced symbolically. Other modules
    are not entered.

    Args:
        model: Network, without compiling or parallel wrappers.
        name: Dotted name of the layer, or names of several joined by commas, whose scores the model averages or adds.
        named: Whether the caller chose the layer, which may then be one of several outputs.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Softmax(dim=1))
        >>> structure_proves(model, "1"), structure_proves(model, "0")
        (True, False)
    """
    if not name or _is_place(model, name):
        return True
    if isinstance(model, NormalizedModel):
        inner = ",".join(each.removeprefix("model.") for each in name.split(","))
        return structure_proves(model.model, inner, named=named)
    try:
        around = _Around.of(model, name)
        with contextlib.ExitStack() as biases:
            for each in name.split(","):
                biases.enter_context(_with_bias(model.get_submodule(each)))
            return all(_proves(around, graph, named=named) for graph in _graphs(around))
    except Exception:  # Code that cannot be traced may raise anything.
        return False


@dataclass(frozen=True)
class _Around:
    """Layers whose output is traced, and the modules that contain them."""

    model: nn.Module
    places: list[str]
    """Dotted names of the layers, or of a network of a library whose heads they are."""
    entered: list[nn.Module]
    is_library: bool
    is_map: bool

    @classmethod
    def of(cls, model: nn.Module, name: str) -> _Around:
        """Return the surroundings of the layers called `name`. Raise NotImplementedError if one cannot be traced."""
        names = name.split(",")
        parents = [_parents(each) for each in names]
        common = [parent for parent in parents[0] if all(parent in others for others in parents)]
        networks = [
            parent
            for parent in common
            if _is_place(model.get_submodule(parent), ",".join(each.removeprefix(f"{parent}.") for each in names))
        ]
        places = networks[:1] or names
        inside = dict.fromkeys(parent for place in places for parent in _parents(place))
        entered = [model.get_submodule(parent) for parent in inside]
        if any("forward" in vars(module) for module in entered):
            raise NotImplementedError("a module's forward was replaced")
        is_map = isinstance(model.get_submodule(names[0]), nn.Conv2d)
        return cls(model, places, entered, is_library=bool(networks), is_map=is_map)


def _parents(name: str) -> list[str]:
    """Return the names of the modules that contain the module `name`, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(len(parts) if name else 0)]


@contextlib.contextmanager
def _with_bias(layer: nn.Module) -> Iterator[None]:
    """Add a bias to `layer` while the block runs. The trace then shows whether the code adds the bias."""
    weight = layer.weight
    if layer._parameters.get("bias", weight) is not None or not isinstance(weight, Tensor):
        yield
        return
    layer._parameters["bias"] = nn.Parameter(weight.detach().flatten(1)[:, 0].clone())
    try:
        yield
    finally:
        layer._parameters["bias"] = None


class _Tracer(fx.Tracer):
    """Traces the modules around some layers. Every other module is a single node.

    Args:
        around: Layers, and the modules around them.
        answers: Results of the first conditions that depend on the input. Later conditions are true.
    """

    def __init__(self, around: _Around, answers: tuple[bool, ...]) -> None:
        super().__init__()
        self.around = around
        self.answers, self.taken = answers, list[bool]()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether `m` is a single node."""
        return not any(m is module for module in self.around.entered)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Return the result of a condition that depends on the input."""
        index = len(self.taken)
        self.taken.append(self.answers[index] if index < len(self.answers) else True)
        return self.taken[-1]


def _is_place(module: nn.Module, name: str) -> bool:
    place = known_place(module)
    return place is not None and place[0] == name


def _graphs(around: _Around) -> Iterator[fx.Graph]:
    """Yield the graph of each path through the conditions that depend on the input."""
    model = around.model
    parameters = inspect.signature(model.forward).parameters.values()
    concrete: Any = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    if all(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        concrete = (_PLACEHOLDER,)
    attributes = dict(vars(model))
    pending: list[tuple[bool, ...]] = [()]
    count = 0
    with evaluating(model), _traced_len(around.entered):
        while pending:
            tracer = _Tracer(around, pending.pop())
            try:
                graph = tracer.trace(model, concrete)
            except AssertionError:
                # The code refuses the inputs of this path.
                graph = None
            finally:
                for attribute in vars(model).keys() - attributes.keys():
                    # The tracer writes constants to the model.
                    delattr(model, attribute)
            pending += [(*tracer.taken[:i], not tracer.taken[i]) for i in range(len(tracer.answers), len(tracer.taken))]
            if len(pending) > _MOST_PATHS:
                raise NotImplementedError("too many conditions")
            if graph is not None:
                count += 1
                yield graph
    if not count:
        raise NotImplementedError("no path returns")


@contextlib.contextmanager
def _traced_len(modules: list[nn.Module]) -> Iterator[None]:
    """Let the code of the modules around the layer call `len` on a traced tensor."""
    forwards: list[Any] = [inspect.unwrap(type(module).forward) for module in modules]
    spaces: dict[int, dict[str, Any]] = {id(forward.__globals__): forward.__globals__ for forward in forwards}
    changed = [space for space in spaces.values() if "len" not in space]
    for space in changed:
        space["len"] = _length
    try:
        yield
    finally:
        for space in changed:
            del space["len"]


def _length(values: Any) -> Any:
    return values.size(0) if isinstance(values, fx.Proxy) else len(values)


def _proves(around: _Around, graph: fx.Graph, *, named: bool) -> bool:
    """Return whether a graph returns the output of the layers, without a change to the order of the scores."""
    calls = {place: [node for node in graph.nodes if _computes_scores(node, place)] for place in around.places}
    if not all(calls.values()) or (around.is_library and len(calls[around.places[0]]) > 1):
        return False
    results = next(node for node in graph.nodes if node.op == "output").args[0]
    returned = _returned(results)
    starts = {node for nodes in calls.values() for node in nodes}
    followers = set(starts)
    for node in graph.nodes:
        if node.op == "output" or node in starts or followers.isdisjoint(node.all_input_nodes) or _reads_shape(node):
            continue
        # A node whose result is not used may still change the scores in place.
        if not _keeps_order(around, node, followers, starts):
            return False
        followers.add(node)
    scores = [node for node in returned if node in followers]
    if len(around.places) > 1 and (len(scores) != 1 or not starts <= _sources(scores[0])):
        return False
    return bool(scores) and (named or len(returned) == 1)


def _sources(node: fx.Node) -> set[fx.Node]:
    """Return `node` and all nodes from which it is computed."""
    sources: set[fx.Node] = set()
    pending = [node]
    while pending:
        source = pending.pop()
        if source not in sources:
            sources.add(source)
            pending += source.all_input_nodes
    return sources


def _computes_scores(node: fx.Node, place: str) -> bool:
    """Return whether `node` calls the layer, or multiplies features by its weight."""
    if node.op == "call_module":
        return bool(node.target == place)
    if node.op != "call_function" or node.target is not nn.functional.linear:
        return False
    parameters = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr"]
    return parameters == [f"{place}.weight", f"{place}.bias"]


def _returned(results: Any) -> list[fx.Node]:
    """Return the nodes that could be the scores, as `output_tensors` selects them."""
    if isinstance(results, dict):
        results = next((results[key] for key in _KEYS if isinstance(results.get(key), fx.Node)), results)
    nodes: list[fx.Node] = []
    fx.node.map_arg(results, nodes.append)
    return list(dict.fromkeys(nodes))


def _reads_shape(node: fx.Node) -> bool:
    """Return whether `node` reads the shape, type or device of a tensor."""
    if node.op == "call_method":
        return node.target in ("size", "dim")
    return node.op == "call_function" and node.target is getattr and node.args[1] in _ATTRIBUTES


def _keeps_order(around: _Around, node: fx.Node, followers: set[fx.Node], starts: set[fx.Node]) -> bool:
    """Return whether `node` changes only the shape of the scores, or applies one increasing function to all."""
    model, is_map = around.model, around.is_map
    first = node.args[0] if node.args else None
    others = [source for source in node.all_input_nodes if source is not first]
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        if type(module) in _INCREASING_MODULES:
            return _over_classes(getattr(module, "dim", None), is_map=is_map)
        return type(module) in _PLAIN_MODULES or (is_map and type(module) in _MAP_MODULES)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in ("getattr", "getitem") and around.is_library and first in starts:
        return node.args[1] in _KEYS
    if name == "getitem":
        return is_map and first in followers and _crops_positions(node.args[1])
    if name in _SCALING or name in _SHIFTING:
        return _is_rescaled(model, name, node, followers)
    if first not in followers or any(source in followers for source in others):
        return False
    if name in _INCREASING:
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        return _over_classes(dim, is_map=is_map)
    if name == "mean":
        dims = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        return dims is not None and not _over_classes(dims, is_map=is_map, some=True)
    return name in _RESHAPING or name in _DROPOUT or (is_map and name in _RESIZING)


def _crops_positions(index: Any) -> bool:
    """Return whether an index takes a part of the last two dimensions alone."""
    if not isinstance(index, tuple) or index[0] is not ... or len(index) > 3:
        return False
    return all(isinstance(part, slice) for part in index[1:])


def _over_classes(dims: Any, *, is_map: bool, some: bool = False) -> bool:
    """Return whether all dimensions, or some, may be the dimension of the classes."""
    listed = list(dims) if isinstance(dims, list | tuple) else [dims]
    if some:
        # The tokens (N, T, C) of a linear layer have their positions in dimension 1.
        return any(dim in ((1, -3) if is_map else (-1, 2)) or not isinstance(dim, int) for dim in listed)
    return all(dim in ((1, -3, None) if is_map else (1, -1, None)) for dim in listed)


def _is_rescaled(model: nn.Module, name: str, node: fx.Node, followers: set[fx.Node]) -> bool:
    """Return whether the scores are multiplied by one positive number, or one number is added to all."""
    if len(node.args) != 2 or node.kwargs:
        return False
    first, second = node.args
    if name in ("mul", "add", "iadd", "multiply") and first not in followers:
        first, second = second, first
    if first in followers and second in followers:
        # The sum of the scores of two inputs.
        return name in ("add", "iadd")
    if first not in followers:
        return False
    value = _constant(model, second)
    # A tiny factor would bring the masked score close to 0.
    smallest = _MASK_LEFT / -masked_score(next(model.parameters()).dtype)
    if value is None or name in _SHIFTING or value <= 0:
        return value is not None and name in _SHIFTING
    return (value if "mul" in name else 1 / value) > smallest


def _constant(model: nn.Module, value: Any) -> float | None:
    """Return a number, or the value of a node that is computed from parameters of one element, or None."""
    try:
        result = _evaluated(model, value)
    except NotImplementedError:
        return None
    if isinstance(result, Tensor):
        result = result.item() if result.numel() == 1 else math.nan
    return float(result) if isinstance(result, int | float) and math.isfinite(result) else None


def _evaluated(model: nn.Module, value: Any) -> Any:
    """Return the value of a node that does not depend on the input. Raise NotImplementedError for other nodes."""
    if not isinstance(value, fx.Node):
        return value
    if value.op == "get_attr":
        return operator.attrgetter(str(value.target))(model)
    if value.op not in ("call_function", "call_method"):
        raise NotImplementedError(value.op)
    arguments, options = fx.node.map_arg((value.args, value.kwargs), lambda node: _evaluated(model, node))
    with torch.no_grad():
        if isinstance(value.target, str):
            return getattr(arguments[0], value.target)(*arguments[1:], **options)
        return value.target(*arguments, **options)
