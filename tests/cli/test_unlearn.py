"""pour unlearn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import ENVIRONMENT, GREY, UNREAD, complaint, help_of, here, refusal, show, succeed, succeed_here

import pour

pytestmark = pytest.mark.usefixtures("no_data")


UNREAD_WITH_WORDS = [
    ["--method", "pour-d"],
    ["--steps", 5],
    ["--no-augment"],
    ["--data", "digits"],
    ["--root", "x"],
    ["--arch", "resnet18"],
    ["--mean", 0.5],
    ["--num-classes", 10],
    ["--recipe", "fast"],
    ["--device", "cpu"],
    ["--precision", "fp32"],
    ["--compile"],
]


@pytest.mark.parametrize("flag", UNREAD_WITH_WORDS, ids=lambda flag: flag[0])
def test_forgetting_by_words_refuses_what_it_does_not_read(flag):
    name = flag[0].replace("--no-", "--")
    sentence = refusal("unlearn", "m.safetensors", "--concept", "a cat", *flag, "--out", "f.safetensors")
    assert sentence.startswith(f"{name} {UNREAD} with --concept;")


@pytest.mark.parametrize(
    ("flag", "where"),
    [
        (["--text", "x"], "with --forget"),
        (["--concept-part", "specific"], "with --forget"),
        (["--root", "x"], "without --data"),
        (["--recipe", "fast"], "without --data"),
        (["--num-classes", 10], "without --arch"),
        (["--num-classes", 10, "--arch", "resnet18", "--data", "digits"], "with --data"),
    ],
)
def test_forgetting_classes_refuses_what_it_does_not_read(flag, where):
    options = ["--method", "pour-p", "--forget", 3, "--out", "f.safetensors"]
    assert f"{flag[0]} {UNREAD} {where};" in refusal("unlearn", "m.safetensors", *options, *flag)


FORGET = ["--method", "pour-p", "--forget", "3", "--quiet"]


@pytest.mark.parametrize(
    ("given", "mean", "std"),
    [
        (["--mean", "0.1,0.2,0.3", "--std", "0.5"], [0.1, 0.2, 0.3], [0.5, 0.5, 0.5]),
        (["--mean", "0.5"], [0.5, 0.5, 0.5], None),
        ([], None, None),
    ],
)
def test_plain_weights_take_a_normalisation(tmp_path, plain, given, mean, std):
    out = tmp_path / "f.safetensors"
    network = ["--arch", "resnet-digits", "--num-classes", 10]
    succeed_here("unlearn", plain(), *network, *given, *FORGET, "--out", out)
    found = pour.load(out).normalize
    own = pour.build_model("resnet-digits", 10).normalize
    torch.testing.assert_close(found.mean.flatten(), own.mean.flatten() if mean is None else torch.tensor(mean))
    torch.testing.assert_close(found.std.flatten(), own.std.flatten() if std is None else torch.tensor(std))


def test_one_number_serves_grey_images(tmp_path, plain):
    out = tmp_path / "f.safetensors"
    network = ["--arch", "resnet-digits", "--data", "digits", "--mean", 0.3, "--std", 0.2]
    succeed_here("unlearn", plain(**GREY), *network, *FORGET, "--out", out)
    assert pour.load(out).normalize.mean.flatten().tolist() == pytest.approx([0.3])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--mean", "0.5,0.5"], "--mean has 2 numbers for 3 channels"),
        (["--std", "1,1,1,1"], "--std has 4 numbers for 3 channels"),
        (["--mean", "half"], "--mean must be one number or one per channel"),
        (["--std", "0"], "deviations above 0"),
    ],
)
def test_wrong_normalisations_are_told(tmp_path, plain, given, words):
    network = ["--arch", "resnet-digits", "--num-classes", 10]
    assert words in refusal("unlearn", plain(), *network, *given, *FORGET, "--out", tmp_path / "f.safetensors")
    assert not (tmp_path / "f.safetensors").exists()


def test_a_file_with_a_normalisation_takes_no_other(tmp_path, plain):
    model = pour.build_model("resnet-digits", 10)
    own, state = pour.save(model, tmp_path / "own.safetensors"), tmp_path / "state.pt"
    torch.save(model.state_dict(), state)
    options = [*FORGET, "--out", tmp_path / "f.safetensors", "--mean", 0.5]
    assert f"--mean {UNREAD} without --arch" in refusal("unlearn", own, *options)
    network = ["--arch", "resnet-digits", "--num-classes", 10]
    for file in (own, state):
        sentence = refusal("unlearn", file, *network, *options)
        assert f"--mean {UNREAD} with {file}; it contains a normalisation" in sentence


def test_unlearn_does_not_promise_the_keys_of_the_original():
    """Its file can have the names of pour's wrapper, model.* and normalize.*. That is for pour export."""
    assert "keys of the original" not in help_of("unlearn")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("m.json", "m.safetensors"),
        ("m", "m.safetensors"),
        ("m.pth", "m.safetensors"),
        ("m.v2", "m.v2.safetensors"),
    ],
)
def test_two_models_never_share_the_json_file_next_to_them(tmp_path, files, name, advice):
    out = tmp_path / name
    for command in (["train"], ["unlearn", files[0], *FORGET], ["train", "--data", "camvid"]):
        sentence = refusal(*command, "--out", out)
        assert f"{name} does not end in .safetensors" in sentence
        assert sentence.endswith(f"call it {advice}.")
    assert not list(tmp_path.glob("m*"))


def test_a_json_file_without_its_model_is_named_with_the_model(tmp_path, files):
    (tmp_path / "m.json").write_text("{}")
    sentence = refusal("unlearn", files[0], *FORGET, "--out", tmp_path / "m.safetensors")
    assert f"{tmp_path / 'm.json'}, which belongs to {tmp_path / 'm.safetensors'}, already exists" in sentence
    assert "--overwrite" in sentence


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path):
    model = pour.build_model("resnet-digits", 10, **GREY)
    pour.models.set_class_names(model, [f"[/{digit}]" for digit in range(10)])
    file = pour.save(model, tmp_path / "original.safetensors")
    out = tmp_path / "[bold].safetensors"
    done = succeed_here("unlearn", file, "--method", "pour-p", "--forget", 3, "--out", out)
    assert "[/3]" in done.stdout
    assert "[bold].safetensors" in succeed_here("history", out).stdout
    done = succeed_here("train", "--epochs", 1, "--device", "cpu", "--out", tmp_path / "[red].safetensors")
    assert "[red].safetensors: digits" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("pour-d", "images of the forgotten classes; name their dataset with --data"),
        ("finetune", "images of the retained classes; name"),
        ("scrub", "images of the forgotten and retained classes; name"),
    ],
)
def test_what_a_method_needs_is_named_by_its_flag(files, method, words):
    options = ["--method", method, "--forget", 3, "--out", "f.safetensors"]
    assert f"{method} needs {words}" in refusal("unlearn", files[0], *options)


def test_retraining_needs_a_recipe(files):
    options = ["--method", "retrain", "--data", "digits", "--forget", 3, "--out", "f.safetensors"]
    assert "name it with --recipe" in refusal("unlearn", files[0], *options)
    assert "no recipe 'nosuch'" in refusal("unlearn", files[0], *options, "--recipe", "nosuch")


def test_plain_weights_are_told_to_name_their_network(tmp_path, plain, files):
    options = [*FORGET, "--out", tmp_path / "f.safetensors"]
    nameless = pour.save(torch.nn.Linear(4, 3), tmp_path / "nameless.safetensors")
    for file in (plain(), nameless):
        sentence = refusal("unlearn", file, *options)
        assert "does not name its architecture; name it with --arch (" in sentence
        assert sentence.endswith("docs/how-to/own-data.md), and its classes with --data or --num-classes.")
    for command in (["unlearn", plain(), *options], ["audit", files[0], plain(), "--forget", 3]):
        sentence = refusal(*command, "--data", "digits")
        assert "does not name its architecture; name it with --arch (" in sentence
        assert sentence.endswith("docs/how-to/own-data.md).")
    words = ["--concept", "a cat", "--out", tmp_path / "f.safetensors"]
    assert "--concept is for zero-shot classifiers" in refusal("unlearn", plain(), *words)


def test_forget_and_history(trained, tmp_path):
    out = tmp_path / "forgotten.safetensors"
    succeed("unlearn", trained, "--method", "pour-p", "--forget", "3", "--forget", "7", "--out", out)
    shown = succeed("history", out).stdout
    assert "pour-p" in shown
    assert "3, 7" in shown
    record = json.loads(show("history", out, "--json"))[0]
    assert record["classes"] == [3, 7]
    assert record["digest_before"] != record["digest_after"]
    assert "Nothing" in show("history", trained)


@pytest.mark.slow
def test_the_same_command_gives_the_same_bytes(trained, tmp_path):
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        out = tmp_path / name / "forgotten.safetensors"
        options = ["--method", "pour-d", "--steps", 5, "--lr", 1e-3, "--forget", "3", "--data", "digits"]
        succeed("unlearn", trained, *options, "--out", out)
        files.append(out.read_bytes())
    assert files[0] == files[1]


def test_method_options_are_flags_with_help():
    text = succeed("unlearn", "--method", "pour-d", "--help").stdout
    assert "--layer-decay" in text
    assert "Default: 400" in text
    assert "--forgotten-logit" not in text
    assert "--forgotten-logit" in show("unlearn", "--method", "pour-p", "--help")


BAD_FORGETS = [
    (["--forget", "x"], "x"),
    (["--forget", "11"], "out of range"),
    (["--forget", "3", "--forget", "3"], "twice|duplicate|more than once"),
    ([part for digit in range(10) for part in ("--forget", digit)], "leave no class"),
    ([part for digit in range(9) for part in ("--forget", digit)], "two"),
]


@pytest.mark.parametrize(("forget", "words"), BAD_FORGETS)
def test_impossible_requests(trained, tmp_path, forget, words):

    out = tmp_path / "out.safetensors"
    sentence = complaint(here("unlearn", trained, "--method", "pour-p", *forget, "--out", out))
    assert re.search(words, sentence), sentence
    assert not list(tmp_path.iterdir())


def test_bad_files(trained, tmp_path):
    out = tmp_path / "out.safetensors"

    def unlearn(path, *more):
        return here("unlearn", path, "--method", "pour-p", "--forget", "3", "--out", out, *more)

    assert "no file" in complaint(unlearn(tmp_path / "absent.safetensors"))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(trained.read_bytes()[:1000])
    assert "not a whole safetensors file" in complaint(unlearn(broken))
    altered = tmp_path / "altered.safetensors"
    content = bytearray(trained.read_bytes())
    content[-3] ^= 1
    altered.write_bytes(content)
    assert "altered" in complaint(unlearn(altered))
    objects = tmp_path / "objects.pt"
    torch.save({"model": Path("x")}, objects)
    assert "model is no tensor" in complaint(unlearn(objects, "--arch", "resnet18", "--num-classes", 10))
    state = tmp_path / "state.pt"
    torch.save(pour.load(trained).state_dict(), state)
    assert "another architecture" in complaint(unlearn(state, "--arch", "resnet18", "--data", "digits"))
    assert "architecture" in complaint(unlearn(state))
    assert not out.exists()
    succeed("unlearn", state, "--arch", "resnet-digits", "--data", "digits", "--method", "pour-p", "--forget", "3",
            "--out", out)  # fmt: skip


def test_a_full_disk_leaves_nothing_behind(trained, tmp_path):
    """The limit on file sizes makes the write itself fail, as a full disk does."""
    out = tmp_path / "out.safetensors"
    command = (
        f'ulimit -f 16; exec "{sys.executable}" -m pour unlearn "{trained}" --method pour-p --forget 3 --out "{out}"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert "nothing was changed" in complaint(done, code=1)
    assert not list(tmp_path.iterdir())
