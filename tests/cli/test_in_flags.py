"""The command line answers in flags: every argument that a message of the library names has a flag or a remedy."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

import pour
from pour.cli import COMMANDS, make_app
from pour.cli.in_flags import ARGUMENT, WITHOUT_FLAG, flags_of, in_flags
from pour.unlearning import list_methods

if TYPE_CHECKING:
    from typer.core import TyperCommand

SOURCE = Path(pour.__file__).parent
FLAGS_OF_COMMANDS = re.compile(r"(?<!in the shell )(?<![\w-])--[a-z][a-z-]*")

# Arguments in messages that no command reaches, or that are not arguments of pour.
NOT_OF_A_COMMAND = {
    "center": "an argument of pour.metrics.cka, which no command calls directly",
    "centered": "an argument of ProjectorFitter, which no command calls directly",
    "debiased": "an argument of pour.metrics.cka, which no command calls directly",
    "dim": "an argument of torch's mean, in advice on images in Python",
    "drop_last": "an argument of torch's DataLoader, which no command makes",
    "encode": "an argument of pour.zero_shot_classifier, which no command calls",
    "form": "an argument of pour.geometry.bound, which no command calls directly",
    "keepdim": "an argument of torch's mean, in advice on images in Python",
    "others": "an argument of concept directions; commands pass all classes",
    "part": "an argument of concept directions, for which a command has --concept-part",
    **dict.fromkeys(
        ("encoder_weights", "img_size", "in_channels", "in_chans", "strict", "weights_backbone"),
        "an argument of another library in the code that rebuilds a network",
    ),
}


@functools.cache
def commands() -> dict[str, TyperCommand]:
    """Return the commands by name, and pour unlearn with the options of each method."""
    found = dict(typer.main.get_command(make_app([])).commands)  # type: ignore[attr-defined]
    for method in list_methods():
        app = typer.main.get_command(make_app(["unlearn", "--method", method.name]))
        found[f"unlearn --method {method.name}"] = app.commands["unlearn"]  # type: ignore[attr-defined]
    return found


def _text(node: ast.expr) -> str:
    """Return the text of a string, with a placeholder for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_no_message(node: ast.FunctionDef | ast.keyword) -> bool:
    """Return whether a node is the representation of an object, or the help of an option."""
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "extra_repr")
    return node.arg in ("help", "first_call")


def messages() -> list[tuple[str, str]]:
    """Return place and text of each text with a space in functions outside the command line, but for docstrings."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        if file.is_relative_to(SOURCE / "cli") or file.is_relative_to(SOURCE / "report" / "figures"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        left_out: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                left_out.add(id(node.value))
            elif isinstance(node, ast.JoinedStr):
                left_out |= {id(part) for part in ast.walk(node) if part is not node}
            elif isinstance(node, ast.FunctionDef | ast.keyword) and _is_no_message(node):
                left_out |= {id(part) for part in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in left_out and " " in _text(node):
                found.append((f"{file.relative_to(SOURCE)}:{node.lineno}", _text(node)))
    return found


def test_each_argument_in_a_message_has_a_flag_or_another_remedy():
    known = set().union(*map(flags_of, commands().values())) | WITHOUT_FLAG.keys() | NOT_OF_A_COMMAND.keys()
    named = [
        (place, match["name"], text)
        for place, text in messages()
        for match in ARGUMENT.finditer(text)
        if "<" not in text and "charset" not in text
    ]
    assert len(named) > 40
    unknown = [entry for entry in named if entry[1] not in known]
    assert not unknown, "give the argument a flag, or a remedy in WITHOUT_FLAG: " + "\n".join(map(str, unknown))


def test_the_library_names_no_flag():
    # A text may name the flags of a command if it names the command too, or both the argument and the flag.
    named = [
        (place, text)
        for place, text in messages()
        if FLAGS_OF_COMMANDS.search(text.split("pour ")[0] if "pour " in text else text)
    ]
    own = [entry for entry in named if "pip install" not in entry[1]]
    assert not own, "name the argument, which the command line translates: " + "\n".join(map(str, own))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_message_of_a_command_names_an_argument(name):
    command = commands()[name]
    flags = flags_of(command)
    for argument in {name.partition("=")[0] for name in flags} | WITHOUT_FLAG.keys():
        sentence = in_flags(f"The request is wrong; pass {argument}=.", flags)
        assert re.search(
            r"(pass --[a-z-]+( to pour train)?|= in Python( \(pour inspect lists the layers\))?)\.$", sentence
        )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("x exists; pass overwrite=True to replace it.", "x exists; pass --overwrite to replace it."),
        ('The rows depend; take direction="scores".', "The rows depend; take --direction scores."),
        ("name it with head='fc.1'.", "name it with head= in Python (pour inspect lists the layers)."),
        ("lower it: lr=3e-6.", "lower it: --lr 3e-6."),
        ("pass copies=False.", "pass --no-copies."),
        ("pass retain= in the request.", "pass retain= in Python in the request."),
        ("/tmp/lr=3/model.pt is missing.", "/tmp/lr=3/model.pt is missing."),
        ("There is no class 'lr=3'.", "There is no class 'lr=3'."),
    ],
)
def test_arguments_become_flags(message, expected):
    flags = {"overwrite": "--overwrite", "overwrite=True": "--overwrite", "direction": "--direction", "lr": "--lr"}
    assert in_flags(message, flags | {"copies": "--copies", "copies=False": "--no-copies"}) == expected


def test_a_missing_normalisation_has_flags():
    sentence = "The network expects other images; normalise them, or wrap the network in pour.models.NormalizedModel."
    # A message of the library says this.
    assert any("wrap the network in pour.models.NormalizedModel" in text for _, text in messages())
    for name in ("unlearn", "audit", "inspect"):
        assert in_flags(sentence, flags_of(commands()[name])).endswith("normalise them, or pass --mean and --std.")
    assert in_flags(sentence, {}) == sentence
