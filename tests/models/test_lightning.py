"""Checkpoints of Lightning, and prefixes that wrappers put before the names of the tensors."""

from __future__ import annotations

import argparse
import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models import NormalizedModel, load, read_state_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Net(nn.Module):
    """A network with a stem and a head."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.stem(x).mean(dim=(2, 3)))
        return scores


class ShopConfig:
    """Hyperparameters that only the training script defines."""

    def __init__(self) -> None:
        self.lr = 0.1


class Settings(dict[str, Any]):
    """A dictionary of a class of its own, such as Lightning's AttributeDict."""


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def lightning_checkpoint(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a checkpoint with the entries that Lightning 2 writes, hyperparameters of own classes among them."""
    return {
        "epoch": 3,
        "global_step": 120,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": OrderedDict(state),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 3}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'val_acc'}": {"dirpath": Path("runs"), "best": torch.tensor(0.9)}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}],
        "lr_schedulers": [],
        "hparams_name": "config",
        "hyper_parameters": Settings(
            config=ShopConfig(),
            args=argparse.Namespace(
                classes={1, 2}, loss=nn.CrossEntropyLoss(), dtype=torch.float16, size=torch.Size([2])
            ),
        ),
    }


def prefixed(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def same(found: nn.Module, net: nn.Module) -> bool:
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        return torch.equal(found(images), net(images))


PREFIXES = ("model.", "net.", "backbone.", "module.", "_orig_mod.", "encoder.", "model.module.", "model._orig_mod.")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_lightning_checkpoint_is_read_without_its_prefix(net: nn.Module, tmp_path: Path, prefix: str) -> None:
    torch.save(lightning_checkpoint(prefixed(net.state_dict(), prefix)), tmp_path / "last.ckpt")
    assert same(load(tmp_path / "last.ckpt", Net()), net)
    wrapped = NormalizedModel(Net(), [0.0] * 3, [1.0] * 3)
    assert same(load(tmp_path / "last.ckpt", wrapped), net)


def test_the_prefix_is_reported(net: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(prefixed(net.state_dict(), "net."), tmp_path / "m.pt")
    with caplog.at_level("INFO", logger="pour"):
        load(tmp_path / "m.pt", Net())
    assert "took the prefix 'net.' off the names" in caplog.text


def test_a_prefix_that_only_the_model_has_is_added(net: nn.Module, tmp_path: Path) -> None:
    torch.save(net.state_dict(), tmp_path / "m.pt")
    found = load(tmp_path / "m.pt", nn.ModuleDict({"network": Net()}))
    assert same(found.network, net)  # type: ignore[arg-type]


def test_parts_of_the_network_that_were_compiled_fit(net: nn.Module, tmp_path: Path) -> None:
    state = {name.replace("stem.", "stem._orig_mod."): tensor for name, tensor in net.state_dict().items()}
    torch.save(lightning_checkpoint(prefixed(state, "model.")), tmp_path / "m.ckpt")
    assert same(load(tmp_path / "m.ckpt", Net()), net)


def test_tensors_outside_the_network_are_left_out_with_a_warning(net: nn.Module, tmp_path: Path) -> None:
    state = {**prefixed(net.state_dict(), "model."), "criterion.weight": torch.ones(5)}
    torch.save(lightning_checkpoint(state), tmp_path / "m.ckpt")
    with pytest.warns(UserWarning, match=r"tensors under 'model.' fit the network, and criterion.weight outside it"):
        assert same(load(tmp_path / "m.ckpt", Net()), net)


def test_two_copies_of_the_network_are_named(net: nn.Module, tmp_path: Path) -> None:
    state = {**prefixed(net.state_dict(), "model."), **prefixed(Net().state_dict(), "ema.")}
    torch.save(lightning_checkpoint(state), tmp_path / "m.ckpt")
    with pytest.raises(UsageError, match=r"network 2 times, under the prefixes 'ema.' and 'model.'; save"):
        load(tmp_path / "m.ckpt", Net())


def test_what_differs_is_named_without_the_prefix(net: nn.Module, tmp_path: Path) -> None:
    torch.save(lightning_checkpoint(prefixed(net.state_dict(), "model.")), tmp_path / "m.ckpt")
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "m.ckpt", Net(classes=7))
    sentence = str(caught.value)
    assert "of another shape fc.weight (5, 4) instead of (7, 4), fc.bias" in sentence
    assert "missing" not in sentence
    assert "pass the network of the saved model" in sentence


def test_a_head_of_another_width_starts_anew(tmp_path: Path) -> None:
    from pour.models import build_model

    trained = build_model("resnet-digits", 10, in_channels=1)
    torch.save(lightning_checkpoint(prefixed(trained.state_dict(), "model.")), tmp_path / "m.ckpt")
    with pytest.warns(UserWarning, match=r"contains no classifier for 4 classes"):
        found = build_model("resnet-digits", 4, in_channels=1, weights=tmp_path / "m.ckpt")
    assert torch.equal(found.stem[0].weight, trained.stem[0].weight)  # type: ignore[index, union-attr]


class Bomb:
    """An object whose pickle calls a function."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.call = call
        self.args = args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.args


def test_nothing_in_a_checkpoint_runs(net: nn.Module, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    state = prefixed(net.state_dict(), "model.")
    bombs = [Bomb(Path.touch, touched), Bomb(exec, f"open({str(touched)!r}, 'w')"), Bomb(getattr, touched, "touch")]
    for place in ("hyper_parameters", "callbacks", "loops"):
        torch.save({**lightning_checkpoint(state), place: bombs}, tmp_path / "m.ckpt")
        assert same(load(tmp_path / "m.ckpt", Net()), net)
        assert not touched.exists()
    torch.save({"state_dict": {**state, "model.fc.bias": Bomb(Path.touch, touched)}}, tmp_path / "m.ckpt")
    with pytest.raises(UsageError, match=r"model.fc.bias is no tensor"):
        load(tmp_path / "m.ckpt", Net())
    assert not touched.exists()


def _with_pickle(file: Path, content: bytes) -> None:
    """Replace the pickle inside a file of torch.save."""
    parts = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(parts, "w") as new:
        for entry in old.infolist():
            is_pickle = entry.filename.endswith("data.pkl")
            new.writestr(entry.filename, content if is_pickle else old.read(entry.filename))
    file.write_bytes(parts.getvalue())


def test_a_pickle_cannot_change_what_it_names(net: nn.Module, tmp_path: Path) -> None:
    """BUILD with a pair sets attributes of whatever is on the stack, such as the defaults of a function."""
    from torch._utils import _rebuild_tensor_v2

    before = _rebuild_tensor_v2.__defaults__
    torch.save(lightning_checkpoint(net.state_dict()), tmp_path / "m.ckpt")
    change = pickle.dumps((None, {"__defaults__": (1, 2)}), protocol=2)[2:-1]
    content = (
        b"\x80\x02}(X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n" + change + b"bX\x01\x00\x00\x00bcx\ny\nu."
    )
    _with_pickle(tmp_path / "m.ckpt", content)
    with pytest.raises(UsageError):
        read_state_dict(tmp_path / "m.ckpt")
    assert _rebuild_tensor_v2.__defaults__ == before


def test_a_cut_or_odd_checkpoint_is_refused_in_a_sentence(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    torch.save(lightning_checkpoint(prefixed(net.state_dict(), "model.")), path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 211):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError):
            read_state_dict(path)
    path.write_bytes(whole)
    memo = b"\x80\x02K\x01r\xff\xff\xff\x7f."
    _with_pickle(path, b"\x80\x02cx\ny\n" + memo[2:])
    with pytest.raises(UsageError, match=r"memo"):
        read_state_dict(path)
