"""The call that runs every method."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import TYPE_CHECKING, Any

import torch

from pour.data.classes import resolve_classes
from pour.errors import UsageError, nearest_name, warn
from pour.inspection.preflight import check_request
from pour.models import card as cards
from pour.models.check_data import check_data
from pour.models.copy_and_swap import copy_model
from pour.models.head import find_head
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.history import HistoryEntry, add_entry, forgotten_before, history
from pour.models.networks.registry import rebuild
from pour.models.projecting.check_mask import check_mask
from pour.models.state import digest
from pour.models.tap import device_of, to_unit
from pour.models.unwrap import unwrap
from pour.training.guard import check_sound
from pour.training.run import Run
from pour.unlearning.contract import Method
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method, list_methods
from pour.unlearning.request import ForgetRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import nn

    from pour.data.classes import ClassRequest
    from pour.data.samples import Batches, IndexedSamples
    from pour.models.head import Example, Head
    from pour.training.recipes import Recipe
    from pour.training.run import Precision
    from pour.training.tasks.task import Dataset, Task
    from pour.unlearning.request import Granted, Need

__all__ = ["carry_out", "make_method", "request_of", "unlearn"]

# Options without effect on the user's own batches.
_OF_SPLITS = ("batch_size", "forget_batch_size", "augment")


def make_method(name: str, **options: Any) -> Method:
    """Return a method with its options. Raise UsageError for an unknown option.

    Examples:
        >>> make_method("pour-p", forgotten_logit="keep")
        PourP(forgotten_logit='keep', direction='auto')
        >>> make_method("pour-p", forgoten_logit="keep")
        Traceback (most recent call last):
        pour.errors.UsageError: pour-p has no option 'forgoten_logit'; did you mean 'forgotten_logit'?
    """
    method = get_method(name)
    names = [field.name for field in dataclasses.fields(method)]
    for option in options:
        if option not in names:
            hint = nearest_name(option, names, f"its options are {', '.join(names) or 'none'}.")
            raise UsageError(f"{name} has no option {option!r}; {hint}")
    return method(**options)


def request_of(
    task: Task[Any, Any],
    dataset: Dataset,
    forget: ClassRequest,
    method: Method,
    model: nn.Module,
    *,
    recipe: Recipe | str | None = None,
    build: Callable[[], nn.Module] | None = None,
    seed: int = 0,
) -> ForgetRequest:
    """Return the request to forget classes of a dataset, with a fresh model if the file of `model` names its network.

    Images of classes that the model forgot earlier are left out, because they would teach these classes again.

    Args:
        task: Task of the dataset.
        dataset: Data of the original.
        forget: Indices or names of the classes to forget.
        method: Method. If it needs validation samples, a tenth of the training samples is held out, on which the
            original was trained.
        model: The original.
        recipe: Recipe with which the original was trained, or its name.
        build: Function that returns a fresh network, if the file of `model` does not name one.
        seed: Seed of the held-out samples.
    """
    classes = task.classes(dataset, forget)
    parts = task.request_fields("", dataset, classes, validation=seed if "validation" in method.needs else None)
    if recipe is not None and "build" not in parts:
        raise UsageError(f"recipe= has no use on {dataset.name}, because no method retrains there; leave it out.")
    architecture = cards.architecture(model)
    if architecture is not None and not architecture.from_user:
        build = functools.partial(rebuild, architecture)
    parts["build"] = build
    return ForgetRequest(classes=classes, recipe=recipe, **parts).without(forgotten_before(model))


def unlearn(
    model: nn.Module,
    request: ForgetRequest | None = None,
    *,
    classes: ClassRequest | None = None,
    forget: IndexedSamples | Batches | None = None,
    retain: IndexedSamples | Batches | None = None,
    validation: IndexedSamples | Batches | None = None,
    build: Callable[[], nn.Module] | None = None,
    recipe: Recipe | str | None = None,
    method: str | Method = "pour-a",
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    progress: bool = True,
    compile: bool = False,
    head: str | Sequence[str] | None = None,
    example: Example | None = None,
    force: bool = False,
    **options: Any,
) -> nn.Module:
    """Return a copy of `model` that has forgotten some classes; `model` itself is never changed.

    Pass either a request, or the classes and the data from which a request is made.

    Args:
        model: Any classifier.
        request: Classes to forget, and the data that may be used.
        classes: Indices or names of the classes to forget.
        forget: Training images of these classes: a DataLoader or another iterable of batches, a torch dataset, a split
            or scenes. A batch is a pair of images and labels, or has both under names such as `pixel_values`, `labels`.
        retain: Training images of the other classes.
        validation: Images that were not trained on.
        build: Function that returns a freshly initialised model of the same architecture.
        recipe: Recipe with which the original was trained, or its name; for retraining.
        method: Name from `pour.list_methods`, or a method with its options.
        seed: Fixes everything random.
        device: Device of the computation, by default the GPU if there is one. The result is on the device of `model`.
        precision: fp32 or bf16; by default bf16 on a GPU that has it.
        progress: Show a progress bar.
        compile: Compile the encoder that an iterative method trains. This saves time on a GPU for long runs, or for
            many runs in one process.
        head: Dotted name of the head, or names of several heads whose scores the model averages. By default the head is
            found automatically. The card of the result records the names.
        example: Small batch of inputs on which to find and verify the head; by default images of the request.
        force: Only warn if the original does not recognise the classes to forget, or was trained without them. The
            history contains the warning.
        options: Options of the method, if it is given by name.

    Returns:
        The unlearned model in evaluation mode. `pour.history` lists its requests.

    Raises:
        UsageError: The model, the request and the method do not fit together.

    Examples:
        >>> import torch, pour
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> forgotten = pour.unlearn(model, classes=[0], method="pour-p", device="cpu")
        >>> pour.history(forgotten)[-1].method
        'pour-p'
    """
    parts: dict[str, Any] = {"classes": classes, "forget": forget, "retain": retain, "validation": validation}
    passed = [name for name, value in (parts | {"build": build, "recipe": recipe}).items() if value is not None]
    if request is not None and passed:
        raise UsageError(f"The request contains {passed[0]}; pass either request= or {passed[0]}=, not both.")
    if request is None:
        if classes is None:
            raise UsageError("There is nothing to forget; pass classes= and the data, or request=.")
        request = ForgetRequest(**parts, build=build, recipe=recipe)
    if isinstance(method, Method):
        if options:
            raise UsageError("The method already has its options; leave the further options out.")
    else:
        method = make_method(method, **options)
    run = Run(seed=seed, device=device, precision=precision, progress=progress, compile=compile)
    return carry_out(model, request, method, run, head=head, example=example, force=force)


def carry_out(
    model: nn.Module,
    request: ForgetRequest,
    method: Method,
    run: Run,
    *,
    head: str | Sequence[str] | None = None,
    example: Example | None = None,
    force: bool | None = None,
) -> nn.Module:
    """Call `unlearn` with a method and a run. The result does not contain earlier log entries of the run.

    Without `force` the original is not checked, because the caller has trained it.
    """
    if not isinstance(request, ForgetRequest):
        raise UsageError(
            f"A request is needed (pour.ForgetRequest), not a {type(request).__name__}; make one of splits with "
            "pour.ForgetRequest.of(splits)."
        )
    run = dataclasses.replace(run, history=[], choices={})
    # A method of another package may not have checked its options.
    method.check_options()
    original, is_given = unwrap(model), example is not None
    if request.class_names is not None:
        check_data(original, channels=request.channels, names=request.class_names)
    place, example = _head(original, request, method, head, example)
    earlier = forgotten_before(original)
    names = cards.names_of_scores(original, place.num_classes)
    classes = resolve_classes(
        request.classes, num_classes=place.num_classes, class_names=names, already=sorted(earlier)
    )
    if place.further_heads and not method.several_heads:
        able = ", ".join(info.name for info in list_methods() if get_method(info.name).several_heads)
        problem = f"{method.name} needs one head, but the model averages the scores of {place.names.replace(',', ', ')}"
        raise UsageError(f"{problem}; use one of {able}.")
    if request.pixelwise and not method.pixelwise:
        able = ", ".join(info.name for info in list_methods() if get_method(info.name).pixelwise)
        raise UsageError(f"{method.name} needs one label per image, not per pixel; on scenes use one of {able}.")
    accepted = (need for need in method.accepts if getattr(request, need) is not None)
    granted = request.without(earlier).grant(
        (*method.needs, *accepted),
        name=method.name,
        num_classes=place.num_classes,
        classes=classes,
        forgotten_before=earlier,
    )
    granted.check()
    without_effect = _without_effect(method, granted)
    notes = () if force is None else _check_original(original, granted, classes, names or (), run, force=force)

    started = time.perf_counter()
    entries = len(history(original))
    # Images and the sums of training are float32.
    dtype = _other_precision(original) if granted.images else None
    # The caller may be in the middle of an evaluation.
    with run.seeded(), torch.inference_mode(mode=False), torch.enable_grad():
        work = copy_model(original)
        if head is not None or is_given or not _is_found(work, place):
            # Methods find the head by this name without images, and the result keeps it.
            cards.change_card(work, head=place.names)
        result = method(work if dtype is None else work.float(), granted, run)
        if not isinstance(result, torch.nn.Module):
            raise UsageError(f"{method.name} returned a {type(result).__name__}; its __call__ must return the model.")
        if run.steps:
            check_sound(result.to(run.torch_device), granted.images[0].few().to(run.torch_device))
        result.to(device=device_of(original), dtype=dtype).eval()
        if all(parameter.is_contiguous() for parameter in original.parameters()):
            # Training moves convolutions to another memory layout, which other code may not support.
            result.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if example is not None:
            check_mask(result, place.names, example)
    if result is not work and not history(result):
        cards.copy_card(work, result)
    if len(history(result)) == entries:
        add_entry(
            result,
            HistoryEntry(
                method=method.name,
                classes=classes,
                class_names=tuple(names[index] for index in classes) if names else (),
                options=method.options()
                | without_effect
                | run.choices
                | {"seed": run.seed, "precision": run.precision},
                digest_before=digest(original.state_dict()),
                digest_after=digest(result.state_dict()),
                steps=run.steps,
                seconds=time.perf_counter() - started,
                losses=tuple(entry["loss"] for entry in run.history if "loss" in entry),
                log=tuple(entry for entry in run.history if "loss" not in entry),
                notes=notes,
            ),
        )
    return result


def _check_original(
    model: nn.Module, granted: Granted, classes: Collection[int], names: Sequence[str], run: Run, *, force: bool
) -> tuple[str, ...]:
    """Check that `model` recognises images of the request. Return the notes for the history."""
    needs: tuple[Need, ...] = ("forget", "retain")
    sides = [getattr(granted, need) for need in needs if granted.has(need)]
    return check_request(model, [side.some for side in sides], classes=classes, names=names, run=run, force=force)


def _head(
    model: nn.Module, request: ForgetRequest, method: Method, head: str | Sequence[str] | None, example: Example | None
) -> tuple[Head, Example | None]:
    """Return the head and the input that verified it: the example, or images of the request if there are any."""
    if example is not None:
        return find_head(model, head=head, example=example), example
    try:
        images = request.first_images(FEW_IMAGES, method.needs)
    except UsageError as error:
        try:
            # A method that reads these batches raises an error itself.
            return find_head(model, head=head), None
        except UsageError:
            raise error from None
    if images is None:
        return find_head(model, head=head), None
    place = head_on_images(model, images, head=head)
    return place, to_unit(images).to(device_of(model), place.weight.dtype)


def _is_found(model: nn.Module, head: Head) -> bool:
    """Return whether `find_head` returns `head` without a name and without images."""
    try:
        return find_head(model).names == head.names
    except UsageError:
        return False


def _without_effect(method: Method, granted: Granted) -> dict[str, None]:
    """Return the options that have no effect on the user's own batches. Warn if one of them is set."""
    if not granted.images or not all(images.from_user for images in granted.images):
        return {}
    default = {field.name: field.default for field in dataclasses.fields(method)}
    regroups = isinstance(method, IterativeMethod) and method.regroups
    names = [name for name in _OF_SPLITS if name in default and not (regroups and name == "batch_size")]
    for name in names:
        if getattr(method, name) != default[name]:
            warn(f"{name} has no effect on {method.name}, because your own batches are used unchanged; leave it out.")
    return dict.fromkeys(names)


def _other_precision(model: nn.Module) -> torch.dtype | None:
    """Return the dtype of a model that is not in float32; otherwise None."""
    dtypes = {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}
    if dtypes <= {torch.float32}:
        return None
    if len(dtypes) > 1:
        raise UsageError(
            f"The model has weights in {' and '.join(sorted(map(str, dtypes)))}; bring it to one precision, as "
            "model.float() does."
        )
    return dtypes.pop()
