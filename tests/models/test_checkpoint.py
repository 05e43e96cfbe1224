"""Files: whole or absent, never unpickled, and honest about what they hold."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pickle
from typing import TYPE_CHECKING

import pytest
import torch
from model_families import CLASSES, TiedHead, mlp
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pour._records import decode, encode
from pour.errors import PourError, UsageError
from pour.models import (
    Header,
    NormalizedModel,
    ProjectedHead,
    ResNet,
    architecture,
    build_model,
    class_names,
    find_head,
    fold,
    forget,
    load,
    read_header,
    read_state_dict,
    save,
    set_architecture,
    set_class_names,
)
from pour.models.history import history

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def digits() -> nn.Module:
    torch.manual_seed(0)
    model = build_model("resnet-digits", 10, in_channels=1, image_size=8, mean=[0.3], std=[0.4])
    set_class_names(model, [f"digit {i}" for i in range(10)])
    return model.eval()


@pytest.mark.parametrize("kind", ["original", "projected", "folded", "directions"])
def test_a_file_is_all_that_is_needed(kind: str, digits: nn.Module, tmp_path: Path) -> None:
    model = {
        "original": lambda: digits,
        "projected": lambda: forget(digits, ["digit 2", 5], forgotten_logit="zero"),
        "folded": lambda: fold(forget(digits, [2])),
        "directions": lambda: forget(digits, directions=torch.randn(3, 64)),
    }[kind]()
    path = save(model, tmp_path / "folder" / "m.safetensors")
    loaded = load(path)
    assert type(loaded) is ResNet
    assert not loaded.training
    images = torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))
    # Wall-clock times stay out of files, so that the same command gives the same bytes.
    timeless = [dataclasses.replace(record, seconds=0.0) for record in history(model)]
    assert history(loaded) == timeless
    assert class_names(loaded) == class_names(model)
    assert architecture(loaded) == architecture(model)
    header = read_header(path)
    assert header is not None
    assert header.history == tuple(timeless)
    assert header.architecture.name == "resnet-digits"
    assert [p.name for p in path.parent.iterdir()] == ["m.safetensors"]
    if kind == "projected":
        (entry,) = header.projections
        assert (entry.head, entry.rank, entry.forgotten, entry.logit) == ("head", 2, (2, 5), "zero")
        assert isinstance(loaded.head, ProjectedHead)
    elif kind != "directions":
        assert header.projections == ()


def test_the_metadata_is_json_for_anyone(digits: nn.Module, tmp_path: Path) -> None:
    path = save(forget(digits, [1]), tmp_path / "m.safetensors")
    with safe_open(path, framework="np") as file:
        data = json.loads(file.metadata()["pour"])
    assert data["projections"] == [{"head": "head", "rank": 1, "forgotten": [1], "logit": "mask", "behind": False}]
    assert data["class_names"][1] == "digit 1"
    assert data["history"][0]["method"] == "pour-p"


def test_it_refuses_to_overwrite(small: nn.Module, tmp_path: Path) -> None:
    path = save(small, tmp_path / "m.safetensors")
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"already exists; pass overwrite=True"):
        save(forget(small, [0]), path)
    assert path.read_bytes() == before
    save(forget(small, [0]), path, overwrite=True)
    assert path.read_bytes() != before


def test_a_full_disk_leaves_nothing(small: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    from pour.models import header

    def full(*args: object, **kwargs: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(header, "save_file", full)
    with pytest.raises(PourError, match=r"No space left.*nothing was changed"):
        save(small, tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_the_same_model_gives_the_same_bytes(digits: nn.Module, tmp_path: Path) -> None:
    set_class_names(digits, [f"Ziffer „{i}“" for i in range(10)])
    contents = {save(digits, tmp_path / f"{i}.safetensors").read_bytes() for i in range(8)}
    assert len(contents) == 1
    assert class_names(load(tmp_path / "0.safetensors")) == class_names(digits)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = TiedHead()
    path = save(model, tmp_path / "m.safetensors")
    assert set(load_file(path)) == set(model.state_dict()) - {"decoder.weight"}
    loaded = load(path, TiedHead())
    assert loaded.decoder.weight is loaded.words.weight
    assert torch.equal(loaded.decoder.weight, model.decoder.weight)
    half = load(save(model.to(torch.bfloat16), tmp_path / "h.safetensors"), TiedHead())
    assert half.decoder.weight.dtype == torch.bfloat16
    assert half.decoder.weight is half.words.weight


def test_views_channels_last_and_other_dtypes_are_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 3)).to(memory_format=torch.channels_last)
    model.register_buffer("view", torch.arange(10.0)[2:5])
    model.register_buffer("count", torch.tensor(7))
    model.double()
    template = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 3))
    template.register_buffer("view", torch.zeros(3))
    template.register_buffer("count", torch.tensor(0))
    loaded = load(save(model, tmp_path / "m.safetensors"), template)
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value)
        assert loaded.state_dict()[key].dtype == value.dtype
    assert template.view.sum() == 0
    assert template[0].weight.dtype == torch.float32


def test_projected_files_fit_original_and_projected_templates(small: nn.Module, tmp_path: Path) -> None:
    path = save(forget(small, [0, 1]), tmp_path / "m.safetensors")
    for template in (small, forget(small, [5])):
        loaded = load(path, template)
        assert find_head(loaded).module.forgotten == (0, 1)
        assert find_head(loaded).module.projector.rank == 2
    plain = save(small, tmp_path / "plain.safetensors")
    assert isinstance(load(plain, forget(small, [5])).head, nn.Linear)
    root = forget(nn.Linear(4, 3), [0])
    assert load(save(root, tmp_path / "root.safetensors"), nn.Linear(4, 3)).forgotten == (0,)


def test_arch_and_names_can_be_given(tmp_path: Path) -> None:
    model = ResNet(CLASSES)
    set_architecture(model, "resnet18", {"num_classes": CLASSES, "in_channels": 3, "image_size": 32})
    path = save(model, tmp_path / "m.safetensors", class_names=list("abcdefg"))
    assert type(load(path)) is ResNet
    assert class_names(load(path)) == tuple("abcdefg")
    for odd in ("abcdefg", [1, 2, 3]):
        with pytest.raises(UsageError, match="a list of strings"):
            save(model, tmp_path / "odd.safetensors", class_names=odd)  # type: ignore[arg-type]
    assert not (tmp_path / "odd.safetensors").exists()


def flip_a_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_altered_files_are_refused(digits: nn.Module, tmp_path: Path) -> None:
    path = save(forget(digits, [0]), tmp_path / "m.safetensors")
    whole = path.read_bytes()
    flip_a_byte(path, len(whole) - 5)
    with pytest.raises(UsageError, match=r"altered after it was saved: its weights"):
        load(path)
    path.write_bytes(whole.replace(b'\\"pour-p\\"', b'\\"pour-q\\"'))
    for read in (load, read_header):
        with pytest.raises(UsageError, match=r"altered after it was saved: its history"):
            read(path)
    path.write_bytes(whole[: len(whole) // 2])
    for read in (load, read_header):
        with pytest.raises(UsageError, match=r"cut short"):
            read(path)
    path.write_bytes(b"hello, this is a text file")
    with pytest.raises(UsageError, match=r"not a whole safetensors file"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(UsageError, match=r"not a whole safetensors file"):
        load(path)


def test_missing_files_and_missing_architectures(small: nn.Module, tmp_path: Path) -> None:
    for read in (load, read_header, read_state_dict):
        with pytest.raises(UsageError, match=r"There is no file"):
            read(tmp_path / "nothing.safetensors")
    with pytest.raises(UsageError, match=r"pass a model of the same architecture"):
        load(save(small, tmp_path / "m.safetensors"))
    save_file({"w": torch.zeros(2)}, tmp_path / "plain.safetensors")
    assert read_header(tmp_path / "plain.safetensors") is None
    with pytest.raises(UsageError, match=r"pass a model of the same architecture"):
        load(tmp_path / "plain.safetensors")


def test_another_architecture_is_named(small: nn.Module, tmp_path: Path) -> None:
    path = save(small, tmp_path / "m.safetensors")
    sentence = r"missing hidden.weight, hidden.bias.* and 1 more; unexpected blocks.0.*and \d+ more; pass the network"
    with pytest.raises(UsageError, match=sentence):
        load(path, mlp())
    wider = ResNet(CLASSES + 1, width=4, blocks=(1, 1))
    with pytest.raises(UsageError, match=r"of another shape head.weight \(7, 8\) instead of \(8, 8\)"):
        load(path, wider)
    with pytest.raises(UsageError, match=r"which has no head 'head'"):
        load(save(forget(small, [0]), tmp_path / "f.safetensors"), mlp())


def test_plain_state_dicts(small: nn.Module, images: Tensor, tmp_path: Path) -> None:
    state = small.state_dict()
    bare = {name: value for name, value in state.items() if not name.startswith("normalize.")}
    kinds = {
        "plain.pt": state,
        "bare.pth": bare,
        "nested.pth": {"state_dict": bare, "epoch": 3},
        "model.pth": {"model": bare, "optimizer": {"lr": 0.1}},
        "parallel.pt": {f"module.{name}": value for name, value in state.items()},
        "compiled.pt": {f"_orig_mod.{name}": value for name, value in state.items()},
    }
    for name, content in kinds.items():
        torch.save(content, tmp_path / name)
        fresh = ResNet(CLASSES, width=4, blocks=(1, 1))
        with torch.no_grad():
            assert torch.equal(load(tmp_path / name, fresh)(images), small(images))
    save_file(bare, tmp_path / "bare.safetensors")
    with torch.no_grad():
        assert torch.equal(
            load(tmp_path / "bare.safetensors", ResNet(CLASSES, width=4, blocks=(1, 1)))(images), small(images)
        )
    odd_ending = save(small, tmp_path / "pour.safetensors").rename(tmp_path / "pour.pt")
    assert load(odd_ending, small) is not small
    with pytest.raises(UsageError, match=r"not as \.pth; call the file pour\.safetensors"):
        save(small, tmp_path / "pour.pth")


@pytest.mark.parametrize("projected", [False, True])
def test_a_network_inside_a_normalising_wrapper_is_read_alone(images: Tensor, tmp_path: Path, projected: bool) -> None:
    """What deployed code has, which normalises by itself."""
    plain = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), CLASSES))
    wrapped = NormalizedModel(plain, [0.5] * 3, [0.2] * 3)
    forgotten = forget(wrapped, [2])
    path = save(forgotten if projected else fold(forgotten), tmp_path / "m.safetensors")
    found = load(path, nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), CLASSES)))
    with torch.no_grad():
        torch.testing.assert_close(found((images - 0.5) / 0.2), load(path, wrapped)(images))
    assert history(found)[0].classes == (2,)
    if not projected:
        assert found.state_dict().keys() == plain.state_dict().keys()


class Foreign:
    pass


def test_files_with_foreign_objects_are_not_unpickled(small: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"weights": small.state_dict(), "thing": Foreign()}, path)
    with pytest.raises(UsageError, match=r"weights, thing is no tensor; save model.state_dict"):
        load(path, small)
    torch.save(small, path)
    with pytest.raises(UsageError, match=r"contains a ResNet, not a state dict"):
        load(path, small)
    torch.save({"a": Foreign()}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UsageError, match=r"old format and contains more than tensors"):
        load(path, small)
    path.write_bytes(pickle.dumps({"a": Foreign()}))
    with pytest.raises(UsageError, match=r"more than tensors|cannot be read"):
        load(path, small)
    torch.save({"a": torch.zeros(1), "b": [1, 2]}, path)
    with pytest.raises(UsageError, match=r"b is no tensor"):
        load(path, small)
    torch.save([1, 2], path)
    with pytest.raises(UsageError, match=r"contains a list"):
        load(path, small)
    torch.save(small.state_dict(), path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UsageError, match=r"cut short"):
        load(path, small)
    path.write_bytes(b"")
    with pytest.raises(UsageError, match=r"cut short|more than plain"):
        load(path, small)


def test_states_that_are_no_tensors_cannot_be_saved(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

        def set_extra_state(self, state: object) -> None:
            pass

    with pytest.raises(UsageError, match=r"no tensor with values"):
        save(Extra(2, 2), tmp_path / "m.safetensors")
    with pytest.raises(UsageError, match=r"no tensor with values"):
        save(nn.Linear(2, 2, device="meta"), tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_files_of_later_versions_are_refused(small: nn.Module, tmp_path: Path) -> None:
    path = save(small, tmp_path / "m.safetensors")
    header = read_header(path)
    assert header is not None
    text = encode(header).replace('"format_version": 1', '"format_version": 99')
    with pytest.raises(UsageError, match=r"update pour-unlearning"):
        decode(Header, text, path)


def test_names_of_our_own_files_are_kept(tmp_path: Path) -> None:
    class Averaged(nn.Module):
        """A wrapper with a single child, as of averaged weights."""

        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.module(x)
            return scores

    model = Averaged()
    loaded = load(save(model, tmp_path / "m.safetensors"), Averaged())
    assert torch.equal(loaded.module.weight, model.module.weight)  # type: ignore[union-attr]
    # Another program's file is from parallel training.
    save_file(
        {f"module.{name}": value for name, value in model.module.state_dict().items()}, tmp_path / "p.safetensors"
    )
    for template in (Averaged(), nn.Linear(4, 3)):
        found = dict(load(tmp_path / "p.safetensors", template).named_parameters())
        assert torch.equal(next(value for name, value in found.items() if "weight" in name), model.module.weight)


@pytest.mark.parametrize("classes", [10, 6])
def test_plain_weights_in_half_precision_take_the_networks_own(tmp_path: Path, classes: int) -> None:
    model = build_model("resnet-digits", 10, in_channels=1)
    file = tmp_path / "half.pt"
    torch.save(
        {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}, file
    )
    with pytest.warns(UserWarning, match="no classifier for 6") if classes == 6 else contextlib.nullcontext():
        loaded = build_model("resnet-digits", classes, in_channels=1, weights=str(file)).eval()
    assert {value.dtype for value in loaded.state_dict().values() if value.is_floating_point()} == {torch.float32}
    assert loaded(torch.rand(2, 1, 8, 8)).shape == (2, classes)


def test_a_file_of_the_old_format_that_was_cut_is_told(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.pt", tmp_path / "cut.pt"
    torch.save(nn.Linear(4, 3).state_dict(), whole, _use_new_zipfile_serialization=False)
    content = whole.read_bytes()
    for length in range(1, len(content), 7):
        cut.write_bytes(content[:length])
        with pytest.raises(UsageError):
            read_state_dict(cut)
