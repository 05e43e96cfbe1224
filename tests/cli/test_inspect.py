"""pour inspect."""

from __future__ import annotations

import json

import pytest
from command_line import complaint, here, process
from own_network import MEAN, STD

import pour

NETWORK = ["--arch", "mynet.py:Net"]
NORMALISED = ["--mean", MEAN, "--std", STD]


def shown(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_network_that_pour_has_never_seen(own_folder):
    """In a real process, with COLUMNS as a terminal has it."""
    given = [*NETWORK, *NORMALISED, "--data", "digits.npz", "--forget", 3]
    text = shown(process("inspect", "net.pt", *given, cwd=own_folder, COLUMNS=60))
    assert max(map(len, text.splitlines())) <= 60
    whole = " ".join(text.split())
    for words in (
        "model.out (Linear, 24 features, 10 classes); verified on an input",
        "from 0 to 1, normalised inside: mean 0.5, deviation 0.25",
        "normalisation: 2 BatchNorm",
        "test, '3': ",
        "The class means form a simplex: ",
        "Without images: pour-p, direction ",
        "With images of the class alone: pour-a.",
    ):
        assert words in whole


def test_the_shell_prints_what_python_prints(inside, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    model = pour.build_model("resnet-digits", 10, in_channels=1, image_size=8)
    file = pour.save(model, inside / "ours.safetensors", overwrite=True)
    assert shown(here("inspect", file)).rstrip() == pour.inspect(pour.load(file)).to_text(70)
    data = pour.load_dataset("digits")
    expected = pour.inspect(pour.load(file), data, ["3"], limit=60)
    given = ["--data", "digits", "--forget", 3, "--limit", 60]
    assert shown(here("inspect", file, *given)).rstrip() == expected.to_text(70)
    record = json.loads(shown(here("inspect", file, *given, "--json")))
    assert record == json.loads(expected.to_json())
    assert record["accuracy"][0]["count"] == 60


@pytest.mark.usefixtures("inside")
def test_a_head_that_is_not_there_is_described(tmp_path):
    (tmp_path / "prototypes.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.emb = torch.nn.Linear(64, 32)\n"
        "        self.p = torch.nn.Parameter(torch.eye(10, 32))\n"
        "    def forward(self, x):\n"
        "        return -torch.cdist(self.emb(x.flatten(1)), self.p)\n"
    )
    import torch

    from pour.models.networks.user_network import build_user_network

    arch = f"{tmp_path / 'prototypes.py'}:Net"
    torch.save(build_user_network(arch).state_dict(), tmp_path / "p.pt")
    text = " ".join(shown(here("inspect", tmp_path / "p.pt", "--arch", arch)).split())
    assert "Head unclear." in text
    assert "emb (Linear, 64 features, 32 classes)" in text
    # The other commands lead here.
    out = ["--forget", 3, "--method", "pour-p", "--out", tmp_path / "f.safetensors", "--arch", arch]
    sentence = complaint(here("unlearn", tmp_path / "p.pt", *out))
    assert (
        f"pass --data, on whose images the head is found, or list the layers with pour inspect {tmp_path}" in sentence
    )


@pytest.mark.usefixtures("inside")
def test_wrong_use_is_one_sentence():
    assert "There is no file" in complaint(here("inspect", "absent.safetensors"))
    assert "name it with --arch (" in complaint(here("inspect", "net.pt"))
    assert "--num-classes has no use with --data" in complaint(
        here("inspect", "net.pt", *NETWORK, "--data", "digits", "--num-classes", 10)
    )
    assert "99" in complaint(here("inspect", "net.pt", *NETWORK, "--data", "digits", "--forget", 99))
