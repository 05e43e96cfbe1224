"""What the README and the docs show is what happens."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import process

import pour
from pour.bench import get_experiment, read_store
from pour.data.loader import DeviceLoader
from pour.training import Recipe, Run, fit

ROOT = Path(__file__).resolve().parent.parent


def readme_commands():
    return re.findall(r"^\$ pour (.+)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)


@pytest.mark.slow
def test_the_readmes_commands_run_as_written(tmp_path):
    commands = readme_commands()
    assert len(commands) >= 8
    for command in commands:
        done = process(*shlex.split(command), cwd=tmp_path)
        assert done.returncode == 0, f"pour {command}\n{done.stderr}"
    assert (tmp_path / "audit.json").is_file()
    assert "pour-a" in (tmp_path / "audit.html").read_text()


@pytest.mark.slow
def test_the_readmes_first_call_runs_as_pasted(capsys):
    text = (ROOT / "README.md").read_text()
    code = re.search(r"<!-- example: first -->\n```python\n(.*?)```\n<!-- end -->", text, flags=re.DOTALL)[1]
    with torch.random.fork_rng():
        exec(compile(code, "README.md", "exec"), {})
    printed = re.search(r"It prints\n\n```\n(.*?)```", text, flags=re.DOTALL)[1].splitlines()
    found = capsys.readouterr().out.splitlines()
    # Accuracies differ in the last digits between machines; the choices do not.
    assert found[2].partition(", learning rate")[0] == printed[2].partition(", learning rate")[0]
    assert "threes 0.0%" in found[1]
    shares = [[float(share) for share in re.findall(r"[\d.]+(?=%)", line)] for line in (*found[:2], *printed[:2])]
    np.testing.assert_allclose(shares[:2], shares[2:], atol=3)


@pytest.mark.filterwarnings("ignore:pour-d still", "ignore:pour-d's loss rose")
def test_the_example_with_data_of_ones_own(tmp_path, monkeypatch):
    """As written, with images that show rows, columns or one half."""
    text = (ROOT / "docs" / "methods.md").read_text()
    code, normalised = (
        re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```\n<!-- end -->", text, flags=re.DOTALL)[1]
        for name in ("own", "normalised")
    )
    rng = np.random.default_rng(0)

    def draw(count):
        labels = np.arange(count) % 3
        images = rng.integers(0, 60, (count, 8, 8, 1), dtype=np.uint8)
        images[labels == 0, ::2] += 150
        images[labels == 1, :, ::2] += 150
        images[labels == 2, :4] += 150
        return images, labels

    images, labels = draw(150)
    test_images, test_labels = draw(60)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    loader = DeviceLoader(images, labels, batch_size=30, device="cpu", shuffle=True)
    fit(network, loader, Recipe(epochs=40, lr=0.05), Run(device="cpu", progress=False))
    monkeypatch.chdir(tmp_path)
    names = {"network": network, "images": images, "labels": labels}
    names |= {"test_images": test_images, "test_labels": test_labels}
    exec(compile(code, "methods.md", "exec"), names)
    assert names["report"].line("acc_f").original.value > 0.9
    assert names["report"].value("acc_f") < 0.5
    again = pour.load("student.safetensors", network)
    assert pour.history(again)[-1].class_names == ("fox",)
    # A network for images from -2 to 2.
    with torch.no_grad():
        network[1].bias += network[1].weight.sum(dim=1) * 0.5
        network[1].weight *= 0.25
    exec(compile(normalised, "methods.md", "exec"), names)
    foxes = torch.as_tensor(test_images[test_labels == 2]).permute(0, 3, 1, 2) / 255
    recognised = network((foxes - 0.5) / 0.25).argmax(dim=1) == 2
    assert recognised.float().mean() < 0.5


def test_the_tables_of_all_pages_are_made_from_the_results():
    import importlib.util

    spec = importlib.util.spec_from_file_location("results", ROOT / "scripts" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for file in module.TABLES:
        text = (ROOT / file).read_text()
        assert module.fill(text, file) == text, f"{file} is out of date: run make results"


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_what_the_tables_call_tuned_or_default_is_what_pour_does_today(name):
    """A default that changes, or a new tuning, takes its row away from the numbers that the pages show."""
    rows = {row.name: row.resolved() for row in get_experiment(name).rows if row.method is not None}
    cells = [cell for cell in read_store(ROOT / "results" / f"{name}.json.gz") if cell.key.row in rows]
    assert len(cells) > 100
    for cell in cells:
        assert cell.setup["options"] == rows[cell.key.row], f"{cell.key.row} of results/{name} is to be run again"


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_between_pages_work(page):
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", (ROOT / "docs" / page).read_text()):
        assert (ROOT / "docs" / target).exists(), target


def test_top_level_names_are_all_there():
    for name in pour.__all__:
        assert getattr(pour, name) is not None
    with pytest.raises(AttributeError):
        pour.nothing  # noqa: B018
