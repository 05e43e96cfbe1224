"""How long a full audit of a ResNet-18 takes, and how much memory the audit of a folder of images needs.

    python benchmarks/audit.py --device cuda                              made-up images of CIFAR-10's size and number
    python benchmarks/audit.py --data cifar10 --root DIR --device cuda    the real ones
    python benchmarks/audit.py --device cpu --limit 2000 --train 2000 --epochs 1 --method delete     on a CPU
    python benchmarks/audit.py --folder 20000 --data cifar10              20,000 JPEG files of 64 x 64 pixels, on a CPU

The first three measure audits that are cold, and with the references' features cached. The networks are trained for a
moment first, because attacks and probes take longer on features without structure; or give files of trained ones
(--original, --retrained). A method that leaves the encoder alone, such as the default one, spares a CPU the run of the
unlearned model.

The last one prints the peak memory of a process that audits the folder, and its time as a ratio to the bare work:
reading and decoding each file with Pillow and one forward pass per model, in plain PyTorch with as many threads and the
same batch. Both run in processes of their own, in turn. Each of the three models has other weights in its encoder.
"""

import argparse
import copy
import cProfile
import json
import pstats
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import pour
from pour._io import write_text
from pour._memory import keep_freed_memory
from pour._provenance import circumstances
from pour.auditing import AuditReport, audit
from pour.data import ImageDataset, ImageSplit
from pour.data.splits import Splits
from pour.training import Run, get_recipe
from pour.training.tasks.classify import Classify


def made_up(train: int, test: int, seed: int = 0) -> ImageDataset:
    """Ten classes of blurred patterns in noise, of CIFAR-10's size."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(10, 8, 8, 3)).repeat(4, axis=1).repeat(4, axis=2)

    def split(count: int) -> ImageSplit:
        labels = np.arange(count) % 10
        images = np.empty((count, 32, 32, 3), np.uint8)
        for rows in np.array_split(np.arange(count), max(1, count // 2000)):
            noise = rng.normal(size=(len(rows), 32, 32, 3)).astype(np.float32)
            pixels = 128 + 20 * patterns[labels[rows]] * rng.uniform(0.3, 1.5, (len(rows), 1, 1, 1)) + 60 * noise
            images[rows] = pixels.clip(0, 255)
        return ImageSplit(images, labels)

    return ImageDataset("made-up", tuple("abcdefghij"), {"train": split(train), "test": split(test)})


def references(options: argparse.Namespace, data: ImageDataset, forgotten: str) -> list[torch.nn.Module]:
    """The original and the retrained model: from their files, or trained for a moment."""
    if options.original and options.retrained:
        return [pour.load(path) for path in (options.original, options.retrained)]
    recipe = get_recipe("fast").change(epochs=options.epochs)
    runs = (Run(seed=seed, device=options.device, progress=False) for seed in (0, 1))
    return [
        Classify().train(data, recipe, run, arch="resnet18", without=without)[0]
        for run, without in zip(runs, ((), (forgotten,)), strict=True)
    ]


BATCH = 64
ROLES = ("original", "unlearned", "retrained")


def write_folder(data: ImageDataset, folder: Path, count: int, size: int) -> None:
    """Write images of a dataset, enlarged, as one folder of JPEG files per class."""
    for name in data.classes:
        (folder / name).mkdir(parents=True)
    written = 0
    for split in data.splits.values():
        for pixels, label in zip(split.images, split.labels.tolist(), strict=True):
            if written < count:
                image = Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC)
                image.save(folder / data.classes[label] / f"{written:06}.jpg", quality=90)
                written += 1
    if written < count:
        raise SystemExit(f"{data.name} has {written} images; lower --folder.")


def write_models(data: ImageDataset, folder: Path) -> None:
    """Write three ResNet-18 with random encoders and fitted heads, which recognise the classes better than chance."""
    few = data.splits["train"].take(np.arange(len(data.splits["train"]))[:: max(1, len(data.splits["train"]) // 3000)])

    def fitted(model: torch.nn.Module, without: tuple[int, ...] = ()) -> torch.nn.Module:
        seen = pour.models.extract_features(model, few.without(without).batches(BATCH, "cpu"))
        rows, head = seen.features.double(), pour.models.find_head(model).layer
        centred, target = rows - rows.mean(dim=0), torch.nn.functional.one_hot(seen.labels, len(data.classes)).double()
        scale = centred.square().sum(dim=1).mean() / rows.shape[1]
        weight = torch.linalg.solve(
            centred.T @ centred / len(rows) + 1e-2 * scale * torch.eye(rows.shape[1]),
            centred.T @ (target - target.mean(dim=0)) / len(rows),
        )
        with torch.no_grad():
            head.weight.copy_(weight.T)
            head.bias.copy_(target.mean(dim=0) - rows.mean(dim=0) @ weight)
        return model

    height, _, channels = data.image_shape
    for role in ROLES:
        torch.manual_seed(ROLES.index(role) // 2)
        model = pour.models.build_model(
            "torchvision:resnet18", len(data.classes), in_channels=channels, image_size=height
        )
        if role == "unlearned":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1 + 0.02 * torch.randn_like(parameter))
        model = fitted(model.eval(), (0,) if role == "retrained" else ())
        pour.save(pour.forget(model, classes=[0]) if role == "unlearned" else model, folder / f"{role}.safetensors")


def audit_folder(folder: Path, models: dict[str, torch.nn.Module]) -> None:
    data = pour.load_dataset(folder)
    audit(**models, data=data, classes=[0], device="cpu", progress=False)


def bare_pass(folder: Path, models: dict[str, torch.nn.Module]) -> None:
    """Read and decode every file, and run every model on it."""
    files = sorted(folder.glob("*/*.jpg"))
    networks = [copy.deepcopy(model).eval().to(memory_format=torch.channels_last) for model in models.values()]

    def decode(file: Path) -> np.ndarray:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB"))

    with ThreadPoolExecutor() as pool, torch.inference_mode():
        for first in range(0, len(files), BATCH):
            pixels = np.stack(list(pool.map(decode, files[first : first + BATCH])))
            images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
            for network in networks:
                network(images)


def measure(work: str, folder: Path) -> None:
    """Print seconds and peak memory of one process that audits the folder, or passes over it."""
    models = {role: pour.load(folder / f"{role}.safetensors") for role in ROLES}
    started = time.perf_counter()
    {"audit": audit_folder, "bare": bare_pass}[work](folder / "images", models)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def compare_folder(options: argparse.Namespace) -> dict[str, object]:
    """Measure the audit of a folder and the bare work in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = pour.load_dataset(options.data, options.root) if options.data else made_up(options.folder, 10)
        write_folder(source, folder / "images", options.folder, options.size)
        write_models(pour.load_dataset(folder / "images"), folder)
        runs: dict[str, list[dict[str, float]]] = {"bare": [], "audit": []}
        for _ in range(options.repeats):
            for work, measured in runs.items():
                command = [sys.executable, __file__, "--measure", work, "--files", str(folder)]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                measured.append(json.loads(printed.splitlines()[-1]))
    ratios = [audited["seconds"] / bare["seconds"] for bare, audited in zip(*runs.values(), strict=True)]
    return {
        **circumstances(torch.device("cpu"), "fp32"),
        "threads": torch.get_num_threads(),
        "command": shlex.join(["python", *sys.argv]),
        "images": f"{options.folder} JPEG files of {options.size} x {options.size} pixels from {source.name}",
        "models": "three ResNet-18 of torchvision, batches of 64",
        "seconds": {work: [round(run["seconds"], 1) for run in measured] for work, measured in runs.items()},
        "audit / bare": [round(ratio, 3) for ratio in ratios],
        "median of audit / bare": round(statistics.median(ratios), 3),
        "peak memory in MB": {
            work: round(max(run["peak"] for run in measured) / 1e6) for work, measured in runs.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", help="a dataset's name; by default made-up images")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--train", type=int, default=50_000, help="made-up training images")
    parser.add_argument("--test", type=int, default=10_000, help="made-up test images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--original", type=Path, help="a model file, with --retrained, instead of training")
    parser.add_argument("--retrained", type=Path)
    parser.add_argument("--method", default="masked-head", help="how the audited model forgets")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=int, help="audit a folder of this many files instead")
    parser.add_argument("--size", type=int, default=64, help="width and height of these files")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=("audit", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.files)
        return
    if options.folder:
        facts = compare_folder(options)
        print(json.dumps(facts, indent=1))
        if options.json:
            write_text(options.json, json.dumps(facts, indent=1) + "\n")
        return
    keep_freed_memory()

    data = pour.load_dataset(options.data, options.root) if options.data else made_up(options.train, options.test)
    forgotten = data.classes[0]
    original, retrained = references(options, data, forgotten)
    splits = Splits.of(data, [forgotten])
    request = pour.ForgetRequest.of(splits)
    unlearned = pour.unlearn(original, request, method=options.method, device=options.device, progress=False)

    def timed(cache: str | None, everything: bool = False) -> tuple[float, AuditReport]:
        started = time.perf_counter()
        report = audit(
            original=original,
            unlearned=unlearned,
            retrained=retrained,
            data=splits,
            device=options.device,
            limit=options.limit,
            cache=cache,
            cache_unlearned=everything,
            progress=False,
        )
        return time.perf_counter() - started, report

    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        # The first run of a process also loads kernels; both are shown.
        seconds["first"], report = timed(None)
        if options.device != "cpu":
            seconds["second"], _ = timed(None)
        seconds["cold, writing the cache"], _ = timed(folder)
        seconds["references cached"], again = timed(folder)
        timed(folder, everything=True)
        seconds["all cached"], _ = timed(folder, everything=True)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(timed, folder)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    drift = max(abs(value - again.values()[name]) for name, value in report.values().items())
    facts = {
        **circumstances(torch.device(options.device), "fp32"),
        "threads": torch.get_num_threads(),
        "command": shlex.join(["python", *sys.argv]),
        "data": data.name,
        "limit": options.limit,
        "models": "files" if options.original else f"trained for {options.epochs} epochs",
        "images": {name: len(split) for name, split in data.splits.items()},
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "largest difference between runs": drift,
    }
    print(json.dumps(facts, indent=1))
    print(report)
    if options.json:
        write_text(options.json, json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
