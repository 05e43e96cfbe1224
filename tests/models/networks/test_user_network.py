"""Networks of the user's own code, by their name."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from pour.errors import UsageError
from pour.models import NormalizedModel, architecture, build_model
from pour.models.networks.libraries import LIBRARIES
from pour.models.networks.registry import rebuild
from pour.models.networks.user_network import build_user_network, is_user_network


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Return a function that writes a file of code and returns its path. Leave the import path as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text, name="nets.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


HEAD = "from torch import nn\n"


@pytest.mark.parametrize(
    ("signature", "width"),
    [
        ("num_classes", 4),
        ("n_classes=7", 4),
        ("*, classes", 4),
        ("num_labels, extra=1", 4),
        ("**others", 4),
        ("", 9),
        ("width=9", 9),
    ],
)
def test_the_number_of_classes_is_passed_if_it_is_accepted(code, signature, width):
    name = signature.split("=")[0].split(",")[0].strip("* ")
    text = f"{HEAD}def net({signature}): return nn.Linear(5, 9)\n"
    if width == 4:
        name = "others['num_classes']" if name == "others" else "classes" if "classes" in signature.split() else name
        text = f"{HEAD}def net({signature}): return nn.Linear(5, {name})\n"
    assert build_user_network(f"{code(text)}:net", 4).out_features == width


def test_a_module_of_a_package_in_the_current_folder(code):
    code("", "shop_package/__init__.py")
    code("WIDTH = 6\n", "shop_package/sizes.py")
    code(f"{HEAD}from shop_package.sizes import WIDTH\ndef net(): return nn.Linear(WIDTH, 2)\n", "shop_package/nets.py")
    assert build_user_network("shop_package.nets:net").in_features == 6


def test_a_file_may_import_its_neighbours_and_have_the_name_of_a_package(code, tmp_path):
    code("WIDTH = 6\n", "elsewhere/neighbour_of_timm.py")
    file = code(f"{HEAD}import neighbour_of_timm as n\ndef net(): return nn.Linear(n.WIDTH, 2)\n", "elsewhere/timm.py")
    before = sys.modules.get("timm")
    assert build_user_network(f"{file}:net").in_features == 6
    assert sys.modules.get("timm") is before


def test_a_file_of_a_package_may_import_the_package(code):
    code("", "shelf_package/__init__.py")
    code("WIDTH = 6\n", "shelf_package/sizes.py")
    code(
        f"{HEAD}from shelf_package.sizes import WIDTH\ndef net(): return nn.Linear(WIDTH, 2)\n", "shelf_package/nets.py"
    )
    assert build_user_network("shelf_package/nets.py:net").in_features == 6


def test_a_changed_file_is_read_again(code):
    import os

    file = code(f"{HEAD}def net(): return nn.Linear(2, 2)\n")
    build_user_network(f"{file}:net")
    code(f"{HEAD}def net(): return nn.Linear(3, 2)\n")
    os.utime(file, (1, 1))
    assert build_user_network(f"{file}:net").in_features == 3


BROKEN = {
    "raises": (
        f"{HEAD}class Net(nn.Module):\n    def __init__(self):\n        nope\n",
        r"nets.py, line 4 \(NameError: ",
    ),
    "torch raises": (
        f"{HEAD}def Net():\n    return nn.Conv2d(3, 3, groups=2, kernel_size=1)\n",
        r"nets.py, line 3 \(V",
    ),
    "syntax": ("x = 1\ndef Net(:\n", r"nets.py, line 2 \(SyntaxError: invalid syntax\)"),
    "missing import": ("import not_installed_at_all\n", r"nets.py, line 1 \(ModuleNotFoundError: "),
    "ends": ("import sys\nsys.exit('usage')\n", "nets.py, line 2 .*under if __name__ == '__main__'"),
    "no network": ("def Net(): return 3\n", "returned int; it must return the network"),
    "other arguments": ("def Net(num_classes, width): pass\n", "needs the argument 'width', but pour passes"),
    "other name": ("def Nett(): pass\n", "has no 'Net'; did you mean 'Nett'"),
    "nothing": ("x = 3\n", "has no 'Net'; it defines no class and no function"),
    "instance": (f"{HEAD}Net = nn.Linear(2, 2)\n", "is a Linear; name a class or a function"),
    "needs a number": ("def Net(num_classes): pass\n", "needs the number of classes; pass num_classes="),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_code_is_one_sentence_with_its_place(code, name):
    text, words = BROKEN[name]
    file = code(text)
    with pytest.raises(UsageError, match=words) as caught:
        build_user_network(f"{file}:Net")
    assert "\n" not in str(caught.value)


def test_missing_files_and_modules(code):
    with pytest.raises(UsageError, match="There is no file absent"):
        build_user_network("absent.py:Net")
    with pytest.raises(UsageError, match="There is no module 'absent_module' in"):
        build_user_network("absent_module.nets:Net")


def test_normalisation_and_card(code):
    file = code(f"{HEAD}def net(num_classes): return nn.Linear(2, num_classes)\n")
    alone = build_model(f"{file}:net", 3, in_channels=1)
    assert isinstance(alone, nn.Linear)
    wrapped = build_model(f"{file}:net", 3, in_channels=1, mean=[0.5])
    assert isinstance(wrapped, NormalizedModel)
    torch.testing.assert_close(wrapped(torch.ones(1, 1, 1, 2)), wrapped.model(torch.full((1, 1, 1, 2), 0.5)))
    recorded = architecture(wrapped)
    assert recorded.from_user
    with pytest.raises(UsageError, match="defined in the user's own code, which no model file may import"):
        rebuild(recorded)
    again = code(
        f"{HEAD}import pour\ndef net(): return pour.models.NormalizedModel(nn.Linear(2, 2), [0.5], [1.0])\n",
        "normalised.py",
    )
    with pytest.raises(UsageError, match="which normalises images; leave mean and std out"):
        build_user_network(f"{again}:net", mean=[0.5])


@pytest.mark.parametrize(
    "arch", [*(f"{library}:name" for library in LIBRARIES), "smp:unet:resnet18", "resnet18", "a.b", ":f"]
)
def test_names_of_pour_are_no_names_of_users(arch):
    assert not is_user_network(arch)
