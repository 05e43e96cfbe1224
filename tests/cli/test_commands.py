"""The command line through real processes; most of what is refused at once in this one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command_line import ENVIRONMENT, here, process
from safetensors.torch import load_file

import pour


def succeed(*arguments):
    done = process(*arguments)
    assert done.returncode == 0, done.stderr
    return done


def show(*arguments):
    """What a command prints that only reads."""
    done = here(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def complaint(done, code=2):
    """The one sentence of a failed command."""
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("pour: ")
    assert lines[0].endswith((".", "?"))
    return lines[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    succeed("train", "--data", "digits", "--epochs", 4, "--out", folder / "original.safetensors", "--quiet")
    return folder / "original.safetensors"


def test_the_script_is_installed():
    done = subprocess.run([Path(sys.executable).with_name("pour"), "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == pour.__version__


def test_help_lists_the_commands():
    text = succeed("--help").stdout
    for command in ("demo", "train", "unlearn", "audit", "tune", "bench", "table", "view", "history", "methods"):
        assert command in text
    assert "pour demo" in text


def test_train_writes_model_and_facts(trained):
    facts = json.loads(trained.with_suffix(".json").read_text())
    assert facts["accuracy"]["test"] > 0.9
    assert facts["neural_collapse"]["nc4"] > 0.9
    assert facts["seed"] == 0
    assert "--epochs 4" in facts["command"]
    model = pour.load(trained)
    scores = model(torch.rand(2, 1, 8, 8))
    assert scores.shape == (2, 10)
    assert sorted(path.name for path in trained.parent.glob("original*")) == ["original.json", "original.safetensors"]


def test_retraining_without_a_class(tmp_path):
    out = tmp_path / "retrained.safetensors"
    succeed("train", "--data", "digits", "--epochs", 3, "--without", "3", "--out", out)
    accuracy = json.loads(out.with_suffix(".json").read_text())["accuracy"]
    assert accuracy["test_forgotten"] == 0
    assert accuracy["test"] > 0.8


@pytest.mark.slow
def test_a_training_that_is_killed_twice_ends_with_the_same_bytes(tmp_path):
    options = ["train", "--data", "digits", "--epochs", 4, "--save-every", 0, "--quiet", "--seed", 4]
    succeed(*options, "--out", tmp_path / "whole.safetensors")
    out = tmp_path / "killed.safetensors"
    resume = tmp_path / "killed.safetensors.resume"
    for _ in range(2):
        before = resume.stat().st_mtime_ns if resume.exists() else 0
        command = [sys.executable, "-m", "pour", *map(str, options), "--out", str(out)]
        process = subprocess.Popen(command, env=ENVIRONMENT)
        while not (resume.exists() and resume.stat().st_mtime_ns > before):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not out.exists()
    succeed(*options, "--out", out)
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert not resume.exists()


def test_forget_fold_and_history(trained, tmp_path):
    out, plain = tmp_path / "forgotten.safetensors", tmp_path / "plain.safetensors"
    succeed("unlearn", trained, "--method", "pour-p", "--forget", "3", "--forget", "7", "--out", out)
    shown = succeed("history", out).stdout
    assert "pour-p" in shown
    assert "3, 7" in shown
    record = json.loads(show("history", out, "--json"))[0]
    assert record["classes"] == [3, 7]
    assert record["digest_before"] != record["digest_after"]
    succeed("unlearn", trained, "--method", "pour-p", "--forget", "3", "--fold", "--out", plain)
    assert load_file(plain).keys() == load_file(trained).keys()
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


def test_tables(tmp_path):
    assert "pour-a" in show("methods")
    assert "rus_o" in show("metrics")
    assert "resnet18" in show("models")
    shown = show("datasets", "--root", tmp_path)
    assert "cifar100" in shown
    assert "digits" in shown


@pytest.mark.slow
def test_demo(demo, tmp_path):
    out = demo.folder
    assert "control" in demo.printed
    leading = " ".join(pour.AuditReport.load(out / "pour-a.json").summary)
    assert leading in " ".join(demo.printed.split())
    page = Path(demo.printed.strip().splitlines()[-1])
    assert page == out / "report.html"
    assert 100_000 < page.stat().st_size < 5_000_000
    assert pour.history(pour.load(out / "pour-p.safetensors"))[0].class_names == ("3",)
    files = [out / f"{name}.safetensors" for name in ("original", "pour-p")]
    options = ["--forget", "3", "--data", "digits"]
    printed = succeed(
        "audit", *files, *options, "--retrained", out / "retrained.safetensors", "--json", "--quiet"
    ).stdout
    report = pour.AuditReport.from_json(printed)
    assert report.value("acc_f") == 0
    assert report.value("cka_f_o", "raw") == pytest.approx(1.0)
    assert report.line("acc_r").verdict != "no reference"
    assert json.loads(printed)["summary"] == list(report.summary)
    assert "In the encoder's raw features" in report.summary[1]
    alone = succeed("audit", *files, *options, "--out", tmp_path / "alone.json").stdout
    assert "no reference" in alone
    *summary, path = alone.rpartition("\n\n")[2].splitlines()
    assert path == str(tmp_path / "alone.json")
    assert " ".join(" ".join(summary).split()) == " ".join(pour.AuditReport.load(path).summary)
    assert "No retrained model was given" in alone
    assert not any(line.name.endswith("_r_r") for line in pour.AuditReport.load(tmp_path / "alone.json").lines)
    assert "out of range" in complaint(here("audit", *files, "--forget", "12", "--data", "digits"))


BAD_FORGETS = [
    (["--forget", "x"], "x"),
    (["--forget", "11"], "out of range"),
    (["--forget", "3", "--forget", "3"], "twice|duplicate|more than once"),
    ([part for digit in range(10) for part in ("--forget", digit)], "leave no class"),
    ([part for digit in range(9) for part in ("--forget", digit)], "two"),
]


@pytest.mark.parametrize(("forget", "words"), BAD_FORGETS)
def test_impossible_requests(trained, tmp_path, forget, words):
    import re

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
    assert "plain tensors" in complaint(unlearn(objects, "--arch", "resnet18", "--num-classes", 10))
    state = tmp_path / "state.pt"
    torch.save(pour.load(trained).state_dict(), state)
    assert "another architecture" in complaint(unlearn(state, "--arch", "resnet18", "--data", "digits"))
    assert "architecture" in complaint(unlearn(state))
    assert not out.exists()
    succeed("unlearn", state, "--arch", "resnet-digits", "--data", "digits", "--method", "pour-p", "--forget", "3",
            "--out", out)  # fmt: skip


def test_bad_use(trained, tmp_path):
    out = tmp_path / "out.safetensors"
    assert "did you mean 'pour-p'" in complaint(
        process("unlearn", trained, "--method", "pour_p", "--forget", 3, "--out", out)
    )
    assert "images of the forgotten classes; name their dataset with --data" in complaint(
        here("unlearn", trained, "--forget", "3", "--out", out)
    )
    assert "already exists" in complaint(
        here("unlearn", trained, "--method", "pour-p", "--forget", 3, "--out", trained)
    )
    assert "digits" in complaint(here("train", "--data", "digit", "--out", out))
    assert "cifar10 is not under" in complaint(here("train", "--data", "cifar10", "--root", tmp_path, "--out", out))
    assert "no architecture" in complaint(here("train", "--arch", "resnet", "--out", out))
    assert "learning rate" in complaint(here("train", "--lr", "-1", "--out", out))
    assert "not a device" in complaint(here("train", "--device", "gpu please", "--out", out))
    assert "no recipe" in complaint(here("train", "--recipe", "slow", "--out", out))
    assert "no experiment" in complaint(here("bench", "imagenet", "--out", tmp_path / "b"))
    assert "not written by pour" in complaint(here("history", _plain_safetensors(tmp_path)))
    missing = here("unlearn", trained, "--forget", "3")
    assert missing.returncode == 2
    assert "Missing option '--out'" in missing.stderr
    assert not out.exists()


def _plain_safetensors(folder):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, folder / "plain.safetensors")
    return folder / "plain.safetensors"


def test_divergence_is_failed_work(tmp_path):
    out = tmp_path / "out.safetensors"
    sentence = complaint(process("train", "--lr", "1e9", "--epochs", 2, "--out", out, "--quiet"), code=1)
    assert "at step" in sentence
    assert "learning rate" in sentence
    # With a single step, nothing is measured after it but the scores.
    single = here("train", "--lr", "1e30", "--epochs", 1, "--batch-size", 1442, "--out", out, "--quiet")
    assert "scores are no longer finite" in complaint(single, code=1)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing_behind(trained, tmp_path):
    """The limit on file sizes makes the write itself fail, as a full disk does."""
    out = tmp_path / "out.safetensors"
    command = (
        f'ulimit -f 16; exec "{sys.executable}" -m pour unlearn "{trained}" --method pour-p --forget 3 --out "{out}"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert "nothing was changed" in complaint(done, code=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["original.safetensors", "original.json", "original.html"])
def test_an_audit_replaces_no_file_of_its_models(trained, target):
    before = {path.name: path.read_bytes() for path in trained.parent.iterdir()}
    flag = "--report" if target.endswith("html") else "--out"
    options = ["--forget", 3, "--data", "digits", flag, trained.with_name(target), "--overwrite"]
    assert "a file of an audited model" in complaint(here("audit", trained, trained, *options))
    assert "is a file; give a folder" in complaint(here("audit", trained, trained, *options[:4], "--cache", trained))
    assert {path.name: path.read_bytes() for path in trained.parent.iterdir()} == before
