"""Examples below the help of the commands, and the page of the documentation that each command belongs to."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

__all__ = ["EXAMPLES", "GUIDES", "Example", "help_footer"]

WIDTH = 60
"""Width of the narrowest terminal that shows an example whole."""


@dataclass(frozen=True)
class Example:
    """A command line, and what it is for."""

    purpose: str
    command: str

    def lines(self, width: int = WIDTH, indent: int = 2) -> list[str]:
        r"""Return the lines of the command, which a shell reads as one. They break in front of flags only.

        Example:
            >>> Example("", "pour audit original.safetensors student.safetensors --data digits").lines(50)
            ['pour audit original.safetensors student.safetensors \\', '  --data digits']
        """
        parts: list[str] = []
        for word in shlex.split(self.command):
            quoted = shlex.quote(word)
            if parts and not word.startswith("--"):
                parts[-1] += f" {quoted}"
            else:
                parts.append(quoted)
        lines = [parts[0]]
        for part in parts[1:]:
            # A line that continues ends in a space and a backslash.
            if len(lines[-1]) + 1 + len(part) + 2 <= width:
                lines[-1] += f" {part}"
            else:
                lines[-1] += " \\"
                lines.append(" " * indent + part)
        return lines


EXAMPLES = {
    "": (
        Example("Forget a digit in several ways, and write a report.", "pour demo"),
        Example(
            "Forget class 3 of a model.",
            "pour unlearn model.safetensors --forget 3 --data digits --out student.safetensors",
        ),
        Example("Measure what is left of it.", "pour audit model.safetensors student.safetensors --report audit.html"),
    ),
    "demo": (
        Example("Forget the digit 3, and open the report in a browser.", "pour demo --open"),
        Example("Forget another digit, in another folder.", "pour demo --forget 7 --out runs/seven"),
    ),
    "inspect": (
        Example(
            "Verify the head on data, and get a suitable method.",
            "pour inspect original.safetensors --data digits --forget 3",
        ),
        Example(
            "Inspect the plain weights of your own network.",
            "pour inspect weights.pt --arch mynet.py:Net --data images@64 --mean 0.5 --std 0.25",
        ),
    ),
    "train": (
        Example("Train the original on digits.", "pour train --data digits --out original.safetensors"),
        Example(
            "Train the retrained reference, which never sees a 3.",
            "pour train --data digits --without 3 --seed 1 --out retrained.safetensors",
        ),
        Example(
            "Train your own network on a folder of images.",
            "pour train --data images@64 --arch mynet.py:Net --epochs 20 --out mine.safetensors",
        ),
    ),
    "unlearn": (
        Example(
            "Forget class 3 from images of this class alone.",
            "pour unlearn original.safetensors --forget 3 --data digits --out student.safetensors",
        ),
        Example(
            "Forget it without any image and without training.",
            "pour unlearn original.safetensors --forget 3 --method pour-p --out projected.safetensors",
        ),
        Example("List the options of a method.", "pour unlearn --method pour-d --help"),
    ),
    "audit": (
        Example(
            "Compare original and student on the test images.",
            "pour audit original.safetensors student.safetensors --data digits",
        ),
        Example(
            "Get verdicts against a retrained model, as a web page.",
            "pour audit original.safetensors student.safetensors --data digits --retrained retrained.safetensors "
            "--report audit.html",
        ),
    ),
    "export": (
        Example(
            "Write the plain weights for code without pour.",
            "pour export student.safetensors --data digits --out network.pt",
        ),
        Example(
            "Write ONNX, which takes images in [0, 1].",
            "pour export student.safetensors --data digits --out network.onnx",
        ),
    ),
    "history": (
        Example("List what a model has forgotten.", "pour history student.safetensors"),
        Example("Print the same as JSON.", "pour history student.safetensors --json"),
    ),
    "tune": (
        Example("Tune two methods of an experiment.", "pour tune digits --method delete --method scrub"),
        Example(
            "Choose by data that the methods may see.",
            "pour tune digits --rule user --out runs/mine-tuning",
        ),
    ),
    "bench": (
        Example(
            "Compare two methods on digits, with two seeds.",
            "pour bench digits --methods pour-p --methods pour-d --seeds 2",
        ),
        Example("Run your own experiment on four processes.", "pour bench mine.toml --jobs 4"),
        Example("Pack the stored results in one file.", "pour bench digits --export digits.json.gz"),
    ),
    "table": (
        Example("Print the table of a benchmark.", "pour table runs/digits"),
        Example(
            "Write two of its columns as CSV.",
            "pour table runs/digits --columns acc_r --columns acc_f --format csv --out table.csv",
        ),
        Example("Compare with the published values.", "pour table runs/cifar10 --against paper"),
    ),
    "study": (Example("Study the models of pour bench digits.", "pour study digits --looks 10"),),
    "view": (
        Example("Show all reports below runs/ in a browser.", "pour view --open"),
        Example("Show another folder on a fixed port.", "pour view reports --port 8000"),
    ),
    "methods": (Example("List the methods.", "pour methods"),),
    "metrics": (Example("List the metrics.", "pour metrics"),),
    "datasets": (
        Example("List the datasets.", "pour datasets"),
        Example("Look for them in another folder.", "pour datasets --root /data"),
    ),
    "models": (Example("List the architectures.", "pour models"),),
    "weights": (
        Example("List the pretrained weights.", "pour weights"),
        Example(
            "Write one of them to a file, for --weights.",
            "pour weights efficientnet-lite0 --out backbone.safetensors",
        ),
    ),
    "texts": (
        Example("Embed the class names of CIFAR-100.", "pour texts --data cifar100 --out texts.npz"),
        Example(
            "Embed a further concept as well.",
            "pour texts --data cifar10 --concept 'a photo of a fox' --out texts.npz",
        ),
    ),
}
"""Examples of each command by its name. The empty name is `pour` itself."""

GUIDES = {
    "": "docs/index.md",
    "demo": "docs/start/read-a-report.md",
    "inspect": "docs/how-to/inspect.md",
    "train": "docs/how-to/own-data.md",
    "unlearn": "docs/how-to/remove-a-class.md",
    "audit": "docs/start/read-a-report.md",
    "export": "docs/how-to/export.md",
    "history": "docs/how-to/after-forgetting.md",
    "tune": "docs/how-to/compare-methods.md",
    "bench": "docs/how-to/compare-methods.md",
    "table": "docs/how-to/compare-methods.md",
    "study": "docs/concepts/theory.md",
    "view": "docs/start/read-a-report.md",
    "methods": "docs/how-to/choose-a-method.md",
    "metrics": "docs/concepts/metrics.md",
    "datasets": "docs/how-to/own-data.md",
    "models": "docs/how-to/own-data.md",
    "weights": "docs/how-to/frozen-backbone.md",
    "texts": "docs/how-to/clip.md",
}
"""Page of the documentation by the name of the command, as a path in the repository."""


def help_footer(name: str) -> str:
    """Return the examples of a command and the path of its page, as lines of at most 60 characters."""
    examples = EXAMPLES[name]
    lines = ["", " Examples:" if len(examples) > 1 else " Example:"]
    for example in examples:
        lines += ["", f"   # {example.purpose}", *(f"   {line}" for line in example.lines(WIDTH - 3))]
    return "\n".join([*lines, "", " Documentation, in the repository:", f"   {GUIDES[name]}", ""])
