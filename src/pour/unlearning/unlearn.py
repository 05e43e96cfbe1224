"""The one call behind which every method stands."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

from pour.data.classes import resolve_classes
from pour.errors import UsageError
from pour.models import card as cards
from pour.models.check_data import check_data
from pour.models.copy_and_swap import copy_model
from pour.models.head import find_head
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.history import HistoryEntry, add_entry, forgotten_before, history
from pour.models.networks.registry import rebuild
from pour.models.state import digest
from pour.models.tap import device_of
from pour.models.unwrap import unwrap
from pour.training.guard import check_sound
from pour.training.recipes import get_recipe
from pour.training.run import Run
from pour.unlearning.contract import Method
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method, list_methods
from pour.unlearning.request import ForgetRequest

if TYPE_CHECKING:
    from torch import nn

    from pour.data.splits import Splits
    from pour.models.head import Example, Head
    from pour.training.run import Precision
    from pour.unlearning.request import Granted

__all__ = ["carry_out", "make_method", "request_of", "unlearn"]

_HELD_OUT = 0.1
_OF_SPLITS = ("batch_size", "forget_batch_size", "augment")


def make_method(name: str, **options: Any) -> Method:
    """A method with its options, checked by name.

    Example:
        >>> make_method("pour-p", forgotten_logit="keep")
        PourP(forgotten_logit='keep', direction='auto')
        >>> make_method("pour-p", forgoten_logit="keep")
        Traceback (most recent call last):
        pour.errors.UsageError: pour-p has no option 'forgoten_logit'; did you mean 'forgotten_logit'?
    """
    method = get_method(name)
    known = [field.name for field in dataclasses.fields(method)]
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"its options are {', '.join(known) or 'none'}."
            raise UsageError(f"{name} has no option {option!r}; {hint}")
    return method(**options)


def request_of(
    splits: Splits, method: Method, model: nn.Module, *, recipe: str | None = None, seed: int = 0
) -> ForgetRequest:
    """The request of ``splits``, with what ``method`` needs beside images: a fresh model, held-out images.

    Images of classes that the model was made to forget before are left out: they would teach those again.

    Args:
        splits: what to forget, and the data.
        method: a tenth of the training images is held out where it asks for validation images and the data have none;
            the original has seen those.
        model: the original, from whose recorded architecture a fresh model is built.
        recipe: the name of the recipe that the original was trained with, for retraining.
        seed: fixes the held-out images.
    """
    build = None
    architecture = cards.architecture(model)
    if architecture is not None:
        build = functools.partial(rebuild, architecture)
    if "validation" in method.needs and splits.validation is None:
        splits = splits.holdout(_HELD_OUT, seed)
    request = ForgetRequest.of(splits, build=build, recipe=None if recipe is None else get_recipe(recipe))
    return request.without(forgotten_before(model))


def unlearn(
    model: nn.Module,
    request: ForgetRequest,
    *,
    method: str | Method = "pour-a",
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    progress: bool = True,
    compile: bool = False,
    head: str | None = None,
    example: Example | None = None,
    **options: Any,
) -> nn.Module:
    """Return a copy of ``model`` that has forgotten what the request names; the model passed in is never changed.

    Args:
        model: any classifier.
        request: the classes, and the data that may be used.
        method: a name from :func:`pour.list_methods`, or a method with its options.
        seed: fixes everything random.
        device: where to compute, by default the GPU where there is one; the result is where ``model`` is.
        precision: fp32 or bf16; by default bf16 on a GPU that has it.
        progress: show a progress bar.
        compile: compile the encoder that an iterative method trains; worth it on a GPU for long runs, or for many in
            one process.
        head: dotted name of the head, if it is not found by itself; the result remembers it.
        example: a small batch of inputs on which to find and verify the head; by default images of the request.
        options: the method's options, where it is given by name.

    Returns:
        The unlearned model in evaluation mode; :func:`pour.history` tells what was done to it.

    Example:
        >>> import torch, pour
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> forgotten = pour.unlearn(model, pour.ForgetRequest(classes=[0]), method="pour-p", device="cpu")
        >>> pour.history(forgotten)[-1].method
        'pour-p'
    """
    if isinstance(method, Method):
        if options:
            raise UsageError("The method is given with its options; leave the further options out.")
    else:
        method = make_method(method, **options)
    run = Run(seed=seed, device=device, precision=precision, progress=progress, compile=compile)
    return carry_out(model, request, method, run, head=head, example=example)


def carry_out(
    model: nn.Module,
    request: ForgetRequest,
    method: Method,
    run: Run,
    *,
    head: str | None = None,
    example: Example | None = None,
) -> nn.Module:
    """:func:`unlearn` for a caller who has a method and a run; what the run has logged before stays out of it."""
    if not isinstance(request, ForgetRequest):
        raise UsageError(
            f"A request is needed (pour.ForgetRequest), not a {type(request).__name__}; make one of splits with "
            "pour.ForgetRequest.of(splits)."
        )
    run = dataclasses.replace(run, history=[], choices={})
    for name, value in method.options().items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{name} of {method.name} must be a finite number, but is {value}.")
    original = unwrap(model)
    if request.class_names is not None:
        check_data(original, channels=request.channels, names=request.class_names)
    found = _head(original, request, method, head, example)
    gone = forgotten_before(original)
    names = cards.names_of_scores(original, found.num_classes)
    classes = resolve_classes(request.classes, num_classes=found.num_classes, class_names=names, already=sorted(gone))
    if request.pixelwise and not method.pixelwise:
        able = ", ".join(info.name for info in list_methods() if get_method(info.name).pixelwise)
        raise UsageError(f"{method.name} takes a label to an image, not to a pixel; on scenes use one of {able}.")
    offered = tuple(need for need in method.accepts if getattr(request, need) is not None)
    granted = request.without(gone).grant(
        (*method.needs, *offered),
        name=method.name,
        num_classes=found.num_classes,
        classes=classes,
        forgotten_before=gone,
    )
    granted.check()
    unused = _unused(method, granted)

    started = time.perf_counter()
    known = len(history(original))
    # Images are float32, and so is everything that training adds up.
    dtype = _other_precision(original) if granted.images else None
    # Whoever asks may be in the middle of an evaluation.
    with run.seeded(), torch.inference_mode(mode=False), torch.enable_grad():
        work = copy_model(original)
        if head is not None or example is not None or not _is_found(work, found):
            # Methods then find it without images, and the result keeps the name.
            cards.change_card(work, head=found.name)
        result = method(work if dtype is None else work.float(), granted, run)
        if not isinstance(result, torch.nn.Module):
            raise UsageError(f"{method.name} gave back a {type(result).__name__}; its __call__ must return the model.")
        if run.steps:
            check_sound(result.to(run.torch_device), granted.images[0].few(run).to(run.torch_device))
        result.to(device=device_of(original), dtype=dtype).eval()
        if all(parameter.is_contiguous() for parameter in original.parameters()):
            # Training brings convolutions into another layout, in which other code may not read them.
            result.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if result is not work and not history(result):
        cards.copy_card(work, result)
    if len(history(result)) == known:
        add_entry(
            result,
            HistoryEntry(
                method=method.name,
                classes=classes,
                class_names=tuple(names[index] for index in classes) if names else (),
                options={**method.options(), **unused, **run.choices, "seed": run.seed, "precision": run.precision},
                digest_before=digest(original.state_dict()),
                digest_after=digest(result.state_dict()),
                steps=run.steps,
                seconds=time.perf_counter() - started,
                losses=tuple(entry["loss"] for entry in run.history if "loss" in entry),
                log=tuple(entry for entry in run.history if "loss" not in entry),
            ),
        )
    return result


def _head(model: nn.Module, request: ForgetRequest, method: Method, head: str | None, example: Example | None) -> Head:
    """Find the head, and verify it on the example or on images of the request if there are any."""
    if example is not None:
        return find_head(model, head=head, example=example)
    try:
        images = request.first_images(FEW_IMAGES, method.needs)
    except UsageError as error:
        try:
            # A method that reads the batches refuses them itself.
            return find_head(model, head=head)
        except UsageError:
            raise error from None
    return find_head(model, head=head) if images is None else head_on_images(model, images, head=head)


def _is_found(model: nn.Module, head: Head) -> bool:
    """Return whether ``head`` is found without a name and without images."""
    try:
        return find_head(model).name == head.name
    except UsageError:
        return False


def _unused(method: Method, granted: Granted) -> dict[str, None]:
    """The options that mean nothing to the user's own batches, which come as they are; told where one was set."""
    if not granted.images or not all(images.own for images in granted.images):
        return {}
    default = {field.name: field.default for field in dataclasses.fields(method)}
    regroups = isinstance(method, IterativeMethod) and method.regroups
    found = [name for name in _OF_SPLITS if name in default and not (regroups and name == "batch_size")]
    for name in found:
        if getattr(method, name) != default[name]:
            warnings.warn(
                f"{name} has no effect on {method.name} here: your own batches are used as they come.", stacklevel=4
            )
    return dict.fromkeys(found)


def _other_precision(model: nn.Module) -> torch.dtype | None:
    """The dtype of a model that is not in float32, which a method's result is to have again; None for one that is."""
    found = {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}
    if found <= {torch.float32}:
        return None
    if len(found) > 1:
        raise UsageError(
            f"The model has weights in {' and '.join(sorted(map(str, found)))}; bring it to one precision, as "
            "model.float() does."
        )
    return found.pop()
