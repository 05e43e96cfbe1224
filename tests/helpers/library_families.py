"""Small networks of torchvision, timm, transformers, segmentation_models_pytorch and open_clip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from model_families import small_torchvision_model
from network_family import CLASSES, Family, images, prepared, without
from torch import Tensor, nn

from pour._torchvision import torchvision_works

if TYPE_CHECKING:
    from collections.abc import Callable

# Before anything imports it: a build for other hardware would not import by itself.
torchvision_works()


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        models = pytest.importorskip("torchvision.models")
        return prepared(models.get_model(name, weights=None, num_classes=CLASSES, **options))

    return build


def _maxvit() -> nn.Module:
    maxvit = pytest.importorskip("torchvision.models.maxvit")
    return prepared(maxvit.MaxVit((64, 64), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=CLASSES))


def _vgg(name: str) -> Callable[[], nn.Module]:
    """VGG or AlexNet with a narrow classifier: the original one has up to 120 million parameters."""

    def build() -> nn.Module:
        models = pytest.importorskip("torchvision.models")
        with torch.device("meta"):
            classifier = models.get_model(name, weights=None, num_classes=CLASSES).classifier
        linear = [module for module in classifier if isinstance(module, nn.Linear)]
        sizes = [(linear[0].in_features, 24), (24, 24), (24, CLASSES)]
        narrow = iter([nn.Linear(*size) for size in sizes])
        layers = [next(narrow) if isinstance(module, nn.Linear) else type(module)() for module in classifier]
        if name == "vgg11":
            model = models.VGG(models.vgg.make_layers([8, "M", 16, "M", 512]), CLASSES, init_weights=False)
        else:
            model = models.AlexNet(CLASSES)
        model.classifier = nn.Sequential(*layers)
        return prepared(model)

    return build


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        timm = pytest.importorskip("timm")
        return prepared(timm.create_model(name, pretrained=False, num_classes=CLASSES, **options))

    return build


_TOKENS = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 32,
    "patch_size": 8,
}
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32}
_WINDOWS = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [1, 2],
    "window_size": 4,
}
_SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
}


def _transformers(model: str, kind: str = "ForImageClassification", **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{model}Config")(**options)
        config.num_labels = CLASSES
        return prepared(getattr(transformers, f"{model}{kind}")(config))

    return build


def _smp(name: str, encoder: str = "resnet18", **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        smp = pytest.importorskip("segmentation_models_pytorch")
        return prepared(getattr(smp, name)(encoder, encoder_weights=None, classes=CLASSES, **options))

    return build


def _open_clip() -> nn.Module:
    from dual_families import open_clip_vit

    return open_clip_vit()


def _zero_shot() -> nn.Module:
    from dual_families import WIDTH

    from pour.models.clip.zero_shot import zero_shot_classifier

    texts = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(2))
    return zero_shot_classifier(_open_clip(), texts).eval()


def _zero_shot_oracle(model: nn.Module, inputs: Tensor) -> Tensor:
    texts = nn.functional.normalize(model.head.weight, dim=1)
    features = model.model.encode_image(model.normalize(inputs)) @ without(texts)
    return model.head.log_scale.exp() * nn.functional.normalize(features, dim=1) @ texts.T + model.head.bias


RELU_BEHIND = {
    **dict.fromkeys(("found", "named"), r"pass example="),
    **dict.fromkeys(("example", "named, example"), r"classifier\.2 \(ReLU\).*put nn\.Identity"),
}
UNNAMED = {"found": r"pass example="}
UNPROVED = UNNAMED | {"named": r"pass example="}
CONVOLUTION_3X3 = r"segmentation_head\.0, is a 3x3 convolution.*put nn\.Conv2d"

TORCHVISION = {
    "resnet18": Family(is_slow=True, build=_torchvision("resnet18"), heads=("fc",), wrong="layer2.0.downsample.0"),
    "resnext50": Family(is_slow=True, build=_torchvision("resnext50_32x4d"), heads=("fc",), wrong="layer1.0.conv1"),
    "squeezenet": Family(
        build=_torchvision("squeezenet1_1"),
        heads=("classifier.1",),
        wrong="features.3.squeeze",
        inputs=lambda: images(64),
        refused=RELU_BEHIND,
    ),
    "googlenet": Family(
        is_slow=True,
        build=_torchvision("googlenet", init_weights=False),
        heads=("fc",),
        wrong="aux1.fc2",
        inputs=lambda: images(64),
    ),
    "inception_v3": Family(
        is_slow=True,
        build=_torchvision("inception_v3", init_weights=False),
        heads=("fc",),
        wrong="AuxLogits.fc",
        inputs=lambda: images(96),
    ),
    "mobilenet_v2": Family(
        is_slow=True, build=_torchvision("mobilenet_v2"), heads=("classifier.1",), wrong="features.18.0"
    ),
    "mobilenet_v3": Family(
        is_slow=True, build=_torchvision("mobilenet_v3_small"), heads=("classifier.3",), wrong="classifier.0"
    ),
    "densenet": Family(is_slow=True, build=_torchvision("densenet121"), heads=("classifier",), wrong="features.conv0"),
    "vgg": Family(
        is_slow=True, build=_vgg("vgg11"), heads=("classifier.6",), wrong="classifier.3", inputs=lambda: images(64)
    ),
    "alexnet": Family(
        is_slow=True, build=_vgg("alexnet"), heads=("classifier.6",), wrong="classifier.4", inputs=lambda: images(64)
    ),
    "regnet": Family(
        is_slow=True, build=_torchvision("regnet_y_400mf"), heads=("fc",), wrong="trunk_output.block1.block1-0.proj.0"
    ),
    "efficientnet": Family(
        is_slow=True, build=_torchvision("efficientnet_b0"), heads=("classifier.1",), wrong="features.8.0"
    ),
    "mnasnet": Family(is_slow=True, build=_torchvision("mnasnet0_5"), heads=("classifier.1",), wrong="layers.14"),
    "shufflenet": Family(is_slow=True, build=_torchvision("shufflenet_v2_x0_5"), heads=("fc",), wrong="conv5.0"),
    "vit": Family(
        build=lambda: prepared(small_torchvision_model("vit")),
        heads=("heads.head",),
        wrong="encoder.layers.encoder_layer_0.mlp.3",
    ),
    "swin": Family(
        build=lambda: prepared(small_torchvision_model("swin")), heads=("head",), wrong="features.1.0.mlp.3"
    ),
    "maxvit": Family(build=_maxvit, heads=("classifier.5",), wrong="classifier.3", inputs=lambda: images(64)),
    "convnext": Family(
        build=lambda: prepared(small_torchvision_model("convnext")),
        heads=("classifier.2",),
        wrong="features.1.0.block.5",
    ),
    "fcn": Family(
        is_slow=True,
        build=_torchvision("fcn_resnet50", weights_backbone=None, aux_loss=True),
        heads=("classifier.4", "aux_classifier.4"),
        named="classifier.4",
        wrong="backbone.layer4.2.conv3",
    ),
    "deeplab": Family(
        is_slow=True,
        build=_torchvision("deeplabv3_mobilenet_v3_large", weights_backbone=None),
        heads=("classifier.4",),
        wrong="classifier.0.project.0",
    ),
    "lraspp": Family(
        is_slow=True,
        build=_torchvision("lraspp_mobilenet_v3_large", weights_backbone=None),
        heads=("classifier.low_classifier", "classifier.high_classifier"),
        wrong="classifier.low_classifier",
        refused=UNNAMED,
    ),
}

TIMM = {
    "vit": Family(build=_timm("vit_tiny_patch16_224", img_size=32, depth=1), heads=("head",), wrong="blocks.0.mlp.fc2"),
    "vit-clip": Family(
        build=_timm("vit_base_patch16_clip_224", img_size=32, depth=1, embed_dim=24, num_heads=2),
        heads=("head",),
        wrong="blocks.0.attn.proj",
    ),
    "deit-distilled": Family(
        build=_timm("deit_tiny_distilled_patch16_224", img_size=32, depth=1), heads=("head", "head_dist"), wrong="head"
    ),
    "levit": Family(
        is_slow=True,
        build=_timm("levit_128s"),
        heads=("head.linear", "head_dist.linear"),
        wrong="head_dist.linear",
        inputs=lambda: images(224, 1),
    ),
    "efficientformer": Family(
        is_slow=True,
        build=_timm("efficientformer_l1"),
        heads=("head", "head_dist"),
        wrong="head_dist",
        inputs=lambda: images(224, 1),
    ),
    "swiftformer": Family(is_slow=True, build=_timm("swiftformer_xs"), heads=("head", "head_dist"), wrong="head"),
    "repvit": Family(
        is_slow=True,
        build=_timm("repvit_m0_9"),
        heads=("head.head.l", "head.head_dist.l"),
        wrong="head.head.l",
        refused=UNNAMED,
    ),
    "pit-distilled": Family(
        is_slow=True,
        build=_timm("pit_ti_distilled_224"),
        heads=("head", "head_dist"),
        wrong="head",
        inputs=lambda: images(224, 1),
    ),
    "crossvit": Family(
        is_slow=True, build=_timm("crossvit_9_240"), heads=("head.0", "head.1"), wrong="head.1", refused=UNPROVED
    ),
    "volo": Family(
        is_slow=True,
        build=_timm("volo_d1_224", img_size=64),
        heads=("head", "aux_head"),
        wrong="aux_head",
        inputs=lambda: images(64),
    ),
    "coatnet": Family(
        is_slow=True,
        build=_timm("coatnet_nano_cc_224"),
        heads=("head.fc",),
        wrong="head.pre_logits.fc",
        inputs=lambda: images(224, 1),
    ),
    "mixer": Family(
        is_slow=True, build=_timm("mixer_s16_224", img_size=32), heads=("head",), wrong="blocks.7.mlp_channels.fc2"
    ),
    "poolformer": Family(
        is_slow=True, build=_timm("poolformer_s12"), heads=("head.fc",), wrong="stages.3.blocks.1.mlp.fc2"
    ),
    "caformer": Family(is_slow=True, build=_timm("caformer_s18"), heads=("head.fc.fc2",), wrong="head.fc.fc1"),
    "mobilenetv4": Family(
        is_slow=True, build=_timm("mobilenetv4_conv_small"), heads=("classifier",), wrong="conv_head"
    ),
    "resnetv2": Family(is_slow=True, build=_timm("resnetv2_50"), heads=("head.fc",), wrong="stages.3.blocks.2.conv3"),
    "resnet-clip": Family(
        is_slow=True, build=_timm("resnet50_clip"), heads=("head.proj",), wrong="head.qkv", inputs=lambda: images(64)
    ),
    "convnext": Family(
        is_slow=True, build=_timm("convnext_atto"), heads=("head.fc",), wrong="stages.3.blocks.1.mlp.fc2"
    ),
    "efficientnet": Family(is_slow=True, build=_timm("efficientnet_b0"), heads=("classifier",), wrong="conv_head"),
    "dla": Family(is_slow=True, build=_timm("dla34"), heads=("fc",), wrong="level5.root.conv"),
    "cait": Family(
        build=_timm("cait_xxs24_224", img_size=32, depth=1), heads=("head",), wrong="blocks_token_only.1.mlp.fc2"
    ),
    "beit": Family(
        build=_timm("beit_base_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=2),
        heads=("head",),
        wrong="blocks.0.mlp.fc1",
    ),
    "eva02": Family(
        build=_timm("eva02_tiny_patch14_224", img_size=28, depth=1),
        heads=("head",),
        wrong="blocks.0.mlp.fc2",
        inputs=lambda: images(28),
    ),
    "fastvit": Family(is_slow=True, build=_timm("fastvit_t8"), heads=("head.fc",), wrong="final_conv.se.fc2"),
    "mambaout": Family(is_slow=True, build=_timm("mambaout_femto"), heads=("head.fc",), wrong="stages.3.blocks.2.fc2"),
    "xcit": Family(
        is_slow=True, build=_timm("xcit_nano_12_p16_224"), heads=("head",), wrong="cls_attn_blocks.1.mlp.fc2"
    ),
    "ghostnet": Family(is_slow=True, build=_timm("ghostnet_100"), heads=("classifier",), wrong="conv_head"),
    "shvit": Family(is_slow=True, build=_timm("shvit_s1"), heads=("head.l",), wrong="no_such_layer"),
    "naflexvit": Family(
        is_slow=True,
        build=_timm("naflexvit_base_patch16_gap", embed_dim=24, depth=1, num_heads=2),
        heads=("head",),
        wrong="blocks.0.mlp.fc2",
    ),
}

TRANSFORMERS = {
    "vit": Family(build=_transformers("ViT", **_TOKENS), heads=("classifier",)),
    "deit": Family(build=_transformers("DeiT", **_TOKENS), heads=("classifier",)),
    "deit-teacher": Family(
        build=_transformers("DeiT", "ForImageClassificationWithTeacher", **_TOKENS),
        heads=("cls_classifier", "distillation_classifier"),
        wrong="cls_classifier",
    ),
    "levit-teacher": Family(
        is_slow=True,
        build=_transformers("Levit", "ForImageClassificationWithTeacher"),
        heads=("classifier.linear", "classifier_distill.linear"),
        wrong="classifier.linear",
        inputs=lambda: images(224, 1),
    ),
    "levit": Family(
        is_slow=True, build=_transformers("Levit"), heads=("classifier.linear",), inputs=lambda: images(224, 1)
    ),
    "resnet": Family(
        build=_transformers("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]), heads=("classifier.1",)
    ),
    "regnet": Family(
        build=_transformers(
            "RegNet", embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], groups_width=8
        ),
        heads=("classifier.1",),
    ),
    "convnext": Family(build=_transformers("ConvNext", **_STAGES), heads=("classifier",)),
    "convnextv2": Family(build=_transformers("ConvNextV2", **_STAGES), heads=("classifier",)),
    "swin": Family(build=_transformers("Swin", **_WINDOWS), heads=("classifier",)),
    "swinv2": Family(build=_transformers("Swinv2", **_WINDOWS), heads=("classifier",)),
    "segformer": Family(
        build=_transformers("Segformer", "ForSemanticSegmentation", **_SEGFORMER),
        heads=("decode_head.classifier",),
        wrong="decode_head.linear_fuse",
    ),
    "segformer-classifier": Family(build=_transformers("Segformer", **_SEGFORMER), heads=("classifier",)),
    "mobilenetv1": Family(
        is_slow=True, build=_transformers("MobileNetV1", depth_multiplier=0.25), heads=("classifier",)
    ),
    "mobilenetv2": Family(
        is_slow=True, build=_transformers("MobileNetV2", depth_multiplier=0.35), heads=("classifier",)
    ),
    "beit": Family(build=_transformers("Beit", **_TOKENS), heads=("classifier",)),
    "dinov2": Family(build=_transformers("Dinov2", **_TOKENS), heads=("classifier",)),
    "efficientnet": Family(
        is_slow=True,
        build=_transformers(
            "EfficientNet", width_coefficient=0.25, depth_coefficient=0.25, image_size=32, hidden_dim=320
        ),
        heads=("classifier",),
    ),
    "poolformer": Family(
        build=_transformers("PoolFormer", hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]), heads=("classifier",)
    ),
    "siglip": Family(build=_transformers("Siglip", vision_config=_TOKENS), heads=("classifier",)),
    "keyword-arguments": Family(
        build=_transformers("ViT", **_TOKENS), heads=("classifier",), inputs=lambda: {"pixel_values": images()}
    ),
}

_SEGMENTING = lambda: images(64, 2)  # noqa: E731
SMP = {
    "unet": Family(
        build=_smp("Unet", decoder_channels=(32, 16, 16, 8, 8)),
        heads=("segmentation_head.0",),
        inputs=_SEGMENTING,
        refused=CONVOLUTION_3X3,
    ),
    "unet-auxiliary": Family(
        is_slow=True,
        build=_smp("Unet", decoder_channels=(32, 16, 16, 8, 8), aux_params={"classes": CLASSES}),
        heads=("segmentation_head.0", "classification_head.3"),
        wrong="classification_head.3",
        inputs=_SEGMENTING,
        refused=CONVOLUTION_3X3,
    ),
    "fpn": Family(
        is_slow=True, build=_smp("FPN"), heads=("segmentation_head.0",), wrong="decoder.p5", inputs=_SEGMENTING
    ),
    "pspnet": Family(
        build=_smp("PSPNet"),
        heads=("segmentation_head.0",),
        wrong="decoder.conv.0",
        inputs=_SEGMENTING,
        refused=CONVOLUTION_3X3,
    ),
    "manet": Family(
        is_slow=True, build=_smp("MAnet"), heads=("segmentation_head.0",), inputs=_SEGMENTING, refused=CONVOLUTION_3X3
    ),
    "linknet": Family(is_slow=True, build=_smp("Linknet"), heads=("segmentation_head.0",), inputs=_SEGMENTING),
    "pan": Family(
        is_slow=True,
        build=_smp("PAN"),
        heads=("segmentation_head.0",),
        inputs=lambda: images(128, 2),
        refused=CONVOLUTION_3X3,
    ),
    "deeplabv3plus": Family(
        is_slow=True,
        build=_smp("DeepLabV3Plus"),
        heads=("segmentation_head.0",),
        wrong="decoder.block1.0",
        inputs=_SEGMENTING,
    ),
    "upernet": Family(is_slow=True, build=_smp("UPerNet"), heads=("segmentation_head.0",), inputs=_SEGMENTING),
    "segformer": Family(is_slow=True, build=_smp("Segformer"), heads=("segmentation_head.0",), inputs=_SEGMENTING),
    "dpt": Family(
        is_slow=True,
        build=_smp("DPT", "tu-vit_tiny_patch16_224", encoder_depth=4, dynamic_img_size=True),
        heads=("segmentation_head.head.4",),
        wrong="segmentation_head.head.0",
        inputs=_SEGMENTING,
    ),
}

OPEN_CLIP = {
    "clip": Family(build=_open_clip, refused=r"directions=.*zero_shot_classifier|its linear layers include"),
    "zero-shot": Family(build=_zero_shot, heads=("head",), oracle=_zero_shot_oracle),
}

LIBRARY_FAMILIES = {
    f"{library}-{name}": family
    for library, families in {
        "torchvision": TORCHVISION,
        "timm": TIMM,
        "transformers": TRANSFORMERS,
        "smp": SMP,
        "open_clip": OPEN_CLIP,
    }.items()
    for name, family in families.items()
}
