"""Networks of the user's own code in the shell: --arch FILE.py:NAME and package.module:NAME."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
from command_line import complaint, here, process
from own_network import MEAN, STD, write_network
from safetensors import safe_open

import pour
from pour.models.card import Architecture
from pour.models.header import Header, write_file

NORMALISED = ["--mean", MEAN, "--std", STD]


def header(file):
    return json.loads(safe_open(file, "pt").metadata()["pour"])


def said(done):
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("run", [here, pytest.param(process, marks=pytest.mark.slow)])
def test_unlearn_and_audit_a_network_of_ones_own(inside, tmp_path, run):
    """The path of a newcomer: plain weights, a file with the network, arrays; in this process and in real ones."""
    where = {"cwd": inside} if run is process else {}
    student = tmp_path / "student.safetensors"
    given = ["--data", "digits.npz", "--arch", "mynet.py:Net", *NORMALISED]
    done = run("unlearn", "net.pt", *given, "--forget", 3, "--method", "pour-p", "--out", student, **where)
    before = re.search(r"the accuracy fell from ([0-9.]+) % to 0.0 %", said(done))
    assert float(before[1]) > 90
    given[3] = "mynet:Net"
    assert "answers '3' on 0 of" in said(run("audit", "net.pt", student, *given, "--limit", 50, **where))
    recorded = header(student)["architecture"]
    assert (recorded["name"], recorded["from_user"]) == ("mynet.py:Net", True)


@pytest.mark.usefixtures("inside")
def test_a_saved_file_asks_for_the_network_again(tmp_path):
    out = tmp_path / "f.safetensors"
    forget = ["--forget", 3, "--method", "pour-p", "--data", "digits.npz"]
    said(here("unlearn", "plain.pt", *forget, "--arch", "mynet.py:plain", *NORMALISED, "--out", out))
    sentence = complaint(here("unlearn", out, *forget, "--out", tmp_path / "g.safetensors"))
    assert "contains a network of your own code ('mynet.py:plain' when it was saved)" in sentence
    assert "--arch FILE.py:NAME (docs/how-to/own-data.md)" in sentence
    # Normalisation and number of classes come from the file.
    again = ["unlearn", out, "--forget", 5, "--method", "pour-p", "--arch", "mynet.py:plain", "--out"]
    said(here(*again, tmp_path / "g.safetensors"))
    words = complaint(here(*again, tmp_path / "h.safetensors", "--mean", 0.1))
    assert f"--mean has no use with {out}; it contains a normalisation" in words
    model = pour.load(tmp_path / "g.safetensors", pour.load(out, write_network(tmp_path).plain(10)))
    assert [entry.classes for entry in pour.history(model)] == [(3,), (5,)]


@pytest.mark.usefixtures("inside")
def test_train_and_retrain_a_network_of_ones_own(tmp_path):
    original, again = tmp_path / "original.safetensors", tmp_path / "again.safetensors"
    data = ["--arch", "mynet.py:fixed", "--data", "digits.npz", "--recipe", "digits"]
    said(here("train", *data, "--epochs", 1, "--device", "cpu", "--out", original))
    assert header(original)["head"] == "out"
    unlearn = ["unlearn", original, *data, "--forget", 3, "--method", "retrain", "--epochs", 1, "--device", "cpu"]
    said(here(*unlearn, "--out", again))
    assert header(again)["history"][-1]["method"] == "retrain"


@pytest.mark.parametrize(
    ("arch", "from_user"), [("evil:f", True), ("evil.py:f", False), ("os:system", False), ("evil", True)]
)
def test_no_model_file_causes_an_import(inside, tmp_path, monkeypatch, arch, from_user):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('imported', 'w').close()\ndef f(num_classes): raise SystemExit\n")
    state = torch.load(inside / "net.pt")
    recorded = Architecture(arch, {"num_classes": 10, "in_channels": 1, "image_size": 8}, from_user)
    facts = {"class_names": None, "history": (), "projections": (), "aliases": {}, "pour_version": "0"}
    crafted = tmp_path / "crafted.safetensors"
    write_file(crafted, state, Header(architecture=recorded, digest=pour.models.digest(state), **facts))
    monkeypatch.setattr("os.system", lambda *_: pytest.fail("os.system was called"))
    with pytest.raises(pour.UsageError, match=r"user's own code|no architecture"):
        pour.load(crafted)
    unlearn = ["unlearn", crafted, "--forget", 3, "--method", "pour-p", "--out", tmp_path / "f.safetensors"]
    complaint(here(*unlearn))
    complaint(here("audit", crafted, crafted, "--forget", 3, "--data", "digits"))
    # The name that the user gives is imported, and not the name in the file.
    said(here(*unlearn, "--arch", f"{inside / 'mynet.py'}:Net", "--data", "digits"))
    assert not (tmp_path / "imported").exists()
    assert "evil" not in sys.modules


def test_no_experiment_causes_an_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('imported', 'w').close()\n")
    (tmp_path / "mine.toml").write_text('base = "digits"\narchitecture = "evil.py:f"\n')
    sentence = complaint(here("bench", "mine.toml", "--out", tmp_path / "runs"))
    assert "'evil.py:f' of the user's own code, which no file may import" in sentence
    assert not (tmp_path / "imported").exists()


@pytest.mark.usefixtures("inside")
def test_messages_about_architectures_lead_to_the_page(tmp_path):
    out = ["--method", "pour-p", "--forget", 3, "--data", "digits.npz", "--out", tmp_path / "f.safetensors"]
    page = "(docs/how-to/own-data.md)"
    assert page in complaint(here("unlearn", "net.pt", *out, "--arch", "shopnet"))
    assert page in complaint(here("unlearn", "net.pt", *out, "--arch", "mynet.Net"))
    assert "docs/how-to/own-data.md" in complaint(here("unlearn", "net.pt", *out))
