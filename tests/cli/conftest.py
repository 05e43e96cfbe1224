"""Fixtures of the commands' tests."""

from __future__ import annotations

import sys

import pytest
import torch
from command_line import GREY, succeed
from own_network import write_folder

import pour


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """Work in an empty folder, and find no dataset."""
    monkeypatch.setenv("POUR_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def plain(tmp_path):
    """Return a function that writes weights without a normalisation, as other code saves them."""

    def make(name="plain.pt", **options):
        state = pour.build_model("resnet-digits", 10, **options).state_dict()
        torch.save({key: value for key, value in state.items() if not key.startswith("normalize.")}, tmp_path / name)
        return tmp_path / name

    return make


@pytest.fixture
def files(tmp_path):
    """Return the files of two equal models."""
    model = pour.build_model("resnet-digits", 10, **GREY)
    return [pour.save(model, tmp_path / f"{name}.safetensors") for name in ("original", "unlearned")]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return the file of a network that pour train wrote."""
    folder = tmp_path_factory.mktemp("cli")
    succeed("train", "--data", "digits", "--epochs", 4, "--out", folder / "original.safetensors", "--quiet")
    return folder / "original.safetensors"


@pytest.fixture(scope="session")
def own_folder(tmp_path_factory):
    """Return a folder with a network of a user, its plain weights and its data."""
    path = tmp_path_factory.mktemp("own")
    write_folder(path)
    return path


@pytest.fixture
def inside(own_folder, monkeypatch):
    """Work in this folder. Leave the import path of the tests as it was."""
    monkeypatch.chdir(own_folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return own_folder
