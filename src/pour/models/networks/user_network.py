"""Build a network of the user's own code, named `package.module:NAME` or `path/to/file.py:NAME`.

Only a name that the user passes is imported. No model file can cause an import: `pour.load` never calls this
module, and refuses a header with such a name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from pour.errors import UsageError, first_line, nearest_name
from pour.models import card as cards
from pour.models.networks.libraries import LIBRARIES, USER_NETWORKS_PAGE
from pour.models.networks.normalize import NormalizedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

__all__ = ["build_user_network", "is_user_network"]

_CLASS_NUMBERS = ("num_classes", "n_classes", "classes", "num_labels", "n_labels", "num_outputs")
_FILE = ".py"
_MOST_LISTED = 8


def is_user_network(arch: str) -> bool:
    """Return whether `arch` is the name of a network of the user's own code, by its form alone.

    Examples:
        >>> [is_user_network(arch) for arch in ("mynet.py:Net", "shop.nets:build", "timm:resnet10t", "resnet18")]
        [True, True, False, False]
    """
    place, _, name = arch.rpartition(":")
    if not name.isidentifier() or not place:
        return False
    return place.endswith(_FILE) or (place not in LIBRARIES and all(map(str.isidentifier, place.split("."))))


def build_user_network(
    arch: str,
    num_classes: int | None = None,
    *,
    in_channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    resize: int | None = None,
) -> nn.Module:
    """Import the module or file of `arch`, call the class or function in it, and return the network.

    The call passes the number of classes if the class or function has an argument `num_classes`, `n_classes`,
    `classes`, `num_labels`, `n_labels` or `num_outputs`, or accepts any keyword. Otherwise it passes no arguments. The
    current folder and the folder of the file are added to `sys.path`, as Python does for a module and for a program.

    Args:
        arch: `package.module:NAME` or `path/to/file.py:NAME`.
        num_classes: Number of classes. None leaves the choice to the network, if it has a default.
        in_channels: Number of channels of the images, if known. A single mean or deviation is used for all channels.
        mean: Channel means. Without mean, deviation and size, the network gets images in [0, 1] unchanged.
        std: Channel deviations.
        resize: Size to which images are resized before they enter the network.

    Raises:
        UsageError: The code cannot be imported, fails, needs other arguments, or returns no `nn.Module`.

    Examples:
        >>> build_user_network("torch.nn:Identity")
        Identity()
    """
    place, _, name = arch.rpartition(":")
    with _in_one_sentence(arch):
        module = _import_file(Path(place)) if place.endswith(_FILE) else _import_module(place)
    factory = _member(module, place, name)
    arguments = _arguments(arch, factory, num_classes)
    with _in_one_sentence(arch):
        network = factory(**arguments)
    if not isinstance(network, nn.Module):
        raise UsageError(f"{arch} returned {type(network).__name__}; it must return the network, an nn.Module.")
    options: dict[str, Any] = {"mean": mean, "std": std}
    if arguments:
        options["num_classes"] = num_classes
    if in_channels is not None:
        options["in_channels"] = in_channels
    if (mean, std, resize) != (None, None, None):
        if isinstance(network, NormalizedModel):
            raise UsageError(f"{arch} returns a NormalizedModel, which normalises images; leave mean and std out.")
        channels = len(mean or std or [0.0] * (in_channels or 1))
        network = NormalizedModel(network, mean or [0.0] * channels, std or [1.0] * channels, resize=resize)
        options["resize"] = resize
    cards.set_architecture(network, arch, options, from_user=True)
    return network


def _import_module(name: str) -> ModuleType:
    _put_on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # If the user's module imports the missing module, the error belongs to that line.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"There is no module {error.name!r} in {Path.cwd()} or among the installed packages; start pour in the "
            f"folder of the code, or name the file as path/to/file.py:NAME ({USER_NETWORKS_PAGE})."
        ) from error


def _import_file(path: Path) -> ModuleType:
    try:
        source = path.expanduser().resolve()
        modified = source.stat().st_mtime_ns
    except (OSError, RuntimeError) as error:
        raise UsageError(f"There is no file {path}; pass the path of the file that defines the network.") from error
    return _module_of_file(source, modified)


@functools.lru_cache(maxsize=8)
def _module_of_file(source: Path, modified: int) -> ModuleType:
    """Execute the file as a module and return it. If the file did not change, the module is not executed again."""
    _put_on_path(Path.cwd())
    _put_on_path(source.parent)
    # A prefix keeps the file from taking the name of a package, such as timm.
    name = f"user_network_{source.stem}"
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise UsageError(f"{source} cannot be imported as Python code; pass a .py file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _member(module: ModuleType, place: str, name: str) -> Callable[..., object]:
    """Return the class or function `name` of the module."""
    member = getattr(module, name, None)
    if member is not None and (isinstance(member, nn.Module) or not callable(member)):
        raise UsageError(f"{place}:{name} is a {type(member).__name__}; name a class or a function that returns one.")
    if member is not None:
        return cast("Callable[..., object]", member)
    defined = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    listed = f"it defines {', '.join(defined[:_MOST_LISTED])}." if defined else "it defines no class and no function."
    raise UsageError(f"{place} has no {name!r}; {nearest_name(name, defined, listed)}")


def _arguments(arch: str, factory: Callable[..., object], num_classes: int | None) -> dict[str, int]:
    """Return the arguments of the call: the number of classes, or none."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return {}
    by_name = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    number = next((name for name in _CLASS_NUMBERS if name in {each.name for each in by_name}), None)
    if number is None and any(each.kind is each.VAR_KEYWORD for each in parameters):
        number = _CLASS_NUMBERS[0]
    positional = [each for each in parameters if each.kind is each.POSITIONAL_ONLY]
    required = [each.name for each in (*positional, *by_name) if each.default is each.empty]
    if others := [name for name in required if name != number]:
        raise UsageError(
            f"{arch} needs the argument {others[0]!r}, but pour passes at most the number of classes, as one of "
            f"{', '.join(_CLASS_NUMBERS)}; write a function that fills in the rest, and name it ({USER_NETWORKS_PAGE})."
        )
    if num_classes is None and number in required:
        raise UsageError(f"{arch} needs the number of classes; pass num_classes=.")
    return {} if number is None or num_classes is None else {number: num_classes}


@contextlib.contextmanager
def _in_one_sentence(arch: str) -> Iterator[None]:
    """Raise an error of the user's code as a UsageError with its file and line."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        reason = "it ends the program; move the code of the program under if __name__ == '__main__'"
        if isinstance(error, Exception):
            message = error.msg if isinstance(error, SyntaxError) else first_line(error)
            reason = f"{type(error).__name__}: {message}"
        raise UsageError(f"{arch} failed{_line_of(error)} ({reason.rstrip('.')}); correct the code.") from error


def _line_of(error: BaseException) -> str:
    """Return the file and line of an error, outside of this file, the import system and installed packages."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" in {_display_path(error.filename)}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__
        and not frame.filename.startswith("<")
        and "site-packages" not in Path(frame.filename).parts
        and not Path(frame.filename).is_relative_to(Path(contextlib.__file__).parent)
    ]
    return f" in {_display_path(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""


def _display_path(file: str) -> str:
    """Return a path relative to the current folder, if it is inside."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
