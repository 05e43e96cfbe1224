"""Every family of models forgets, folds, exports and leaves the original alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from model_families import CLASSES, FAMILIES, UNFOLDABLE, build_family, torchvision_model
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models import ProjectedHead, digest, find_head, fold, forget, load, save, scores_of, tap_features

FORGOTTEN = [1, 4]


def scores(model: nn.Module, images: Tensor) -> Tensor:
    output = model(images)
    if isinstance(output, dict) and "answer" in output:
        return output["answer"]
    return scores_of(output)


def oracle(model: nn.Module, head: str, images: Tensor) -> np.ndarray:
    """``W P z + b`` in float64 numpy from the tapped z, with P formed by a pseudo-inverse."""
    with torch.no_grad(), tap_features(model, head) as tap:
        model(images)
    found = find_head(model, head=head)
    z = tap.raw.movedim(found.dim, -1).double().numpy()
    W = found.weight.double().numpy()
    V = W[FORGOTTEN]
    P = np.eye(W.shape[1]) - np.linalg.pinv(V) @ V
    expected = z @ P @ W.T
    if found.bias is not None:
        expected = expected + found.bias.double().numpy()
    return np.moveaxis(expected, -1, found.dim)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_w_p_z_plus_b_and_the_original_is_untouched(family: str, images: Tensor) -> None:
    model = build_family(family)
    _, options, name = FAMILIES[family]
    model.train()
    next(iter(model.children())).eval()
    next(model.parameters()).requires_grad_(False)
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    needs_grad = [parameter.requires_grad for parameter in model.parameters()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    random_state = torch.get_rng_state()

    forgotten = forget(model, FORGOTTEN, direction="weights", forgotten_logit="keep", **options)

    assert torch.equal(torch.get_rng_state(), random_state)
    assert [module.training for module in model.modules()] == modes
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert [parameter.requires_grad for parameter in model.parameters()] == needs_grad
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(isinstance(module, ProjectedHead) for module in model.modules())
    assert isinstance(forgotten.get_submodule(name), ProjectedHead)
    shared = {id(parameter) for parameter in model.parameters()}
    assert not any(id(parameter) in shared for parameter in forgotten.parameters())

    model.eval()
    forgotten.eval()
    expected = oracle(model, name, images)
    with torch.no_grad():
        got = scores(forgotten, images).double().numpy()
    assert np.abs(got - expected.reshape(got.shape)).max() <= 1e-5 * np.abs(expected).max()
    assert np.abs(got - scores(model, images).detach().double().numpy()).max() > 1e-6


@pytest.mark.parametrize("logit", ["mask", "keep", "zero"])
@pytest.mark.parametrize("family", FAMILIES)
def test_fold_gives_the_same_class_keys_and_scores(family: str, logit: str, images: Tensor) -> None:
    model = build_family(family)
    forgotten = forget(model, FORGOTTEN, forgotten_logit=logit, **FAMILIES[family][1])
    if family in UNFOLDABLE:
        with pytest.raises(UsageError, match=r"shares its weight|computes its weight"):
            fold(forgotten)
        return
    if family == "no-bias" and logit == "mask":
        with pytest.raises(UsageError, match=r'forgotten_logit="keep"'):
            fold(forgotten)
        return
    plain = fold(forgotten)
    assert type(plain) is type(model)
    original = model.state_dict()
    assert list(plain.state_dict()) == list(original)
    assert all(value.shape == original[key].shape for key, value in plain.state_dict().items())
    assert all(value.dtype == original[key].dtype for key, value in plain.state_dict().items())
    with torch.no_grad():
        projected, folded = scores(forgotten, images), scores(plain, images)
    retained = [index for index in range(CLASSES) if index not in FORGOTTEN]
    dim = 1 if family.startswith("conv") else -1
    kept = torch.tensor(retained)
    largest = projected.index_select(dim, kept).abs().max()
    difference = (projected - folded).abs()
    assert difference.index_select(dim, kept).max() <= 1e-5 * largest
    gone = folded.index_select(dim, torch.tensor(FORGOTTEN))
    if logit == "mask":
        assert torch.isfinite(gone).all()
        assert not torch.isin(folded.argmax(dim), torch.tensor(FORGOTTEN)).any()
        assert torch.equal(gone, projected.index_select(dim, torch.tensor(FORGOTTEN)))
        assert (folded.softmax(dim).index_select(dim, torch.tensor(FORGOTTEN)) == 0).all()
    elif logit == "zero":
        assert (gone == 0).all()
    else:
        assert difference.max() <= 1e-5 * projected.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_save_and_load_round_trip(family: str, images: Tensor, tmp_path) -> None:
    model = build_family(family)
    forgotten = forget(model, FORGOTTEN, **FAMILIES[family][1])
    path = save(forgotten, tmp_path / "m.safetensors", class_names=[f"c{i}" for i in range(CLASSES)])
    loaded = load(path, model)
    assert digest(loaded.state_dict()) == digest(forgotten.state_dict())
    with torch.no_grad():
        assert torch.equal(scores(loaded, images), scores(forgotten, images))


EXPORTED = ["torchvision-resnet18", "timm-vit", "hf-resnet", "hf-vit", "odd", "conv-map", "tokens", "no-bias", "tied"]


@pytest.mark.parametrize("family", EXPORTED)
def test_torch_export_agrees(family: str, images: Tensor) -> None:
    forgotten = forget(build_family(family), FORGOTTEN, **FAMILIES[family][1])
    exported = torch.export.export(forgotten, (images,)).module()
    with torch.no_grad():
        torch.testing.assert_close(scores(exported, images), scores(forgotten, images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["odd", "conv-map", "tokens", "hf-vit", "weight-norm"])
def test_torch_compile_agrees(family: str, images: Tensor) -> None:
    torch._dynamo.reset()
    forgotten = forget(build_family(family), FORGOTTEN, **FAMILIES[family][1])
    compiled = torch.compile(copy.deepcopy(forgotten), backend="aot_eager", fullgraph=family != "hf-vit")
    with torch.no_grad():
        torch.testing.assert_close(scores(compiled, images), scores(forgotten, images), rtol=1e-5, atol=1e-5)
    again = forget(compiled, [0], head=FAMILIES[family][2])
    assert isinstance(again.get_submodule(FAMILIES[family][2]), ProjectedHead)


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in EXPORTED])
def test_torch_export_agrees_for_the_rest(family: str, images: Tensor) -> None:
    test_torch_export_agrees(family, images)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_torch_compile_agrees_for_all(family: str, images: Tensor) -> None:
    torch._dynamo.reset()
    forgotten = forget(build_family(family), FORGOTTEN, **FAMILIES[family][1])
    compiled = torch.compile(forgotten, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(scores(compiled, images), scores(forgotten, images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convnext_tiny", "vit_b_16", "swin_t"])
def test_full_size_torchvision_networks(name: str, images: Tensor) -> None:
    model = torchvision_model(name).eval()
    head = find_head(model).name
    nn.init.normal_(model.get_submodule(head).weight)
    forgotten = forget(model, FORGOTTEN, direction="weights", forgotten_logit="keep")
    expected = oracle(model, head, images)
    with torch.no_grad():
        got, folded = forgotten(images).double().numpy(), fold(forgotten)(images).double().numpy()
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    assert np.abs(folded - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.slow
def test_inductor_agrees(small: nn.Module, images: Tensor) -> None:
    import shutil

    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler for inductor")
    torch._dynamo.reset()
    forgotten = forget(small, FORGOTTEN)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(forgotten)(images), forgotten(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["odd", "conv-map", pytest.param("timm-resnet", marks=pytest.mark.slow)])
def test_onnx_agrees_with_onnxruntime(family: str, images: Tensor, tmp_path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    forgotten = forget(build_family(family), FORGOTTEN, **FAMILIES[family][1])
    path = str(tmp_path / "m.onnx")
    torch.onnx.export(forgotten, (images,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        expected = scores(forgotten, images).numpy()
    found = next(output for output in outputs if output.shape == expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
