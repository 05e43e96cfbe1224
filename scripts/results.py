"""Write the result tables of the documentation, and CSV files of them, from the files under results/ (make results)."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from pour.bench import make_table, read_store, render
from pour.bench.rows import methods_of
from pour.bench.table import other_options

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
# Further forms of POUR-P: in the full table.
_LEFT_OUT = ("pour-p-scores", "pour-p-decisions")


def load(name: str) -> Any:
    """Return the content of a JSON file under results/."""
    return json.loads((RESULTS / name).read_text())


def grid(name: str) -> Path:
    """Return the published file of an experiment."""
    return RESULTS / f"{name}.json.gz"


def training_runs() -> list[dict[str, Any]]:
    """The runs on whole datasets, originals only, in the order of their names."""
    runs = load("training/runs.json")
    return [runs[name] for name in sorted(runs) if not runs[name]["without"]]


def training_table() -> list[str]:
    """Accuracy and speed."""
    lines = [
        "| data | recipe | seed | test | train | images/s | loop, compilation included | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in training_runs():
        accuracy, training = run["accuracy"], run["training"]
        lines.append(
            f"| {run['data']} | {run['recipe']['name']} | {run['seed']} | {accuracy['test']:.2%} | "
            f"{accuracy['train']:.2%} | {training['images_per_second']:,.0f} | {training['seconds']:.0f} s | "
            f"{run['commit']} |"
        )
    return lines


def rivals() -> list[tuple[str, str, float]]:
    """Return operation, rival and the rival's time over the time of pour, from the benchmarks."""
    loop = load("training/benchmark-loop.json")["ratio"]
    ratios = [
        ("training, 50,000 images, H200", "compiled step, DataLoader", loop["over compiled bf16 on a DataLoader"]),
        ("training, 50,000 images, H200", "float32 loop, DataLoader", loop["over fp32 eager"]),
    ]
    rows = [row for row in load("cka/cpu.json")["small"]["rows"] if not row["name"].startswith("pour")]
    cka = [("linear CKA, 10,000 x 512, CPU", row["name"], row["times_ours"]) for row in rows]
    return ratios + sorted(cka, key=lambda row: row[2])


def rivals_table() -> list[str]:
    """Each rival's time over the time of pour."""
    lines = ["| operation | rival | time over the time of pour |", "|---|---|---|"]
    return lines + [f"| {operation} | {rival} | {ratio:.1f} |" for operation, rival, ratio in rivals()]


def collapse_table() -> list[str]:
    """Neural Collapse beside its control."""
    lines = [
        "| data | recipe | seed | NC1 | spread of angles | random rows | NC3 | NC4 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in training_runs():
        nc = run["neural_collapse"]
        lines.append(
            f"| {run['data']} | {run['recipe']['name']} | {run['seed']} | {nc['nc1']:.3f} | "
            f"{nc['nc2_angle_std']:.1f}° | {nc['random_angle_std']:.1f}° | {nc['nc3']:.2f} | {nc['nc4']:.4f} |"
        )
    return lines


def zeroshot_table() -> list[str]:
    """Return the effects of forgetting by text: on average, all at once, and by concept for the default direction."""
    table = make_table(grid("zeroshot"))
    rows = tuple(row for row in table.rows if row.setting == "specific" or row.label.endswith((" at once", " of 10")))
    return render(dataclasses.replace(table, rows=rows), "markdown").rstrip().splitlines()


def camvid_table() -> list[str]:
    """Every class forgotten from one segmentation network, and what that did to the others."""
    return render(make_table(grid("camvid")), "markdown").rstrip().splitlines()


def readme_table() -> list[str]:
    """Six rows and four columns of CIFAR-10 for the first page."""
    rows = ("original", "ceiling", "masked-head", "pour-p", "pour-d-default", "delete-tuned")
    table = few_rows("cifar10", rows, ("acc_r", "acc_f", "rus_r", "probe"))
    return ["| | others | class | RUS(r) | probe |", *table[1:]]


def camvid_short() -> list[str]:
    """POUR-D on each class of CamVid."""
    table = make_table(grid("camvid"))
    lines = [
        "| class | IoU before | IoU after | IoU of the others, change | without the class's pixels | RUS(o) |",
        "|---" * 6 + "|",
    ]
    found = {row.name: row for row in reversed(table.rows) if not row.encoder}
    for name in ("Car", "Pedestrian", "Bicyclist", "Fence", "Pole"):
        before, after = (found[f"{name}-{kind}"].entries for kind in ("original", "pour-d"))
        changes = [f"{after[key].mean - before[key].mean:+.1f}" for key in ("iou_r", "iou_r_rest")]
        values = [f"{before['iou_f'].mean:.1f}", f"{after['iou_f'].mean:.1f}", *changes, f"{after['rus_o'].mean:.2f}"]
        lines.append(f"| {name} | {' | '.join(values)} |")
    return lines


def zeroshot_short() -> list[str]:
    """Each direction, for ten concepts in turn and for all at once."""
    table = make_table(grid("zeroshot"))
    lines = [
        "| forgotten | removed | concept before | concept after | others, change | transfer, change |",
        "|---" * 6 + "|",
    ]
    found = {row.name: row for row in table.rows}
    for request in ("each of 10", "10 at once"):
        for part in ("specific", "centered", "text"):
            row = found[f"{request}-{part}"].entries
            values = [f"{row['acc_f_before'].mean:.1f}", f"{row['acc_f'].mean:.1f}"]
            values += [f"{row[key].mean:+.1f}" for key in ("acc_r_change", "transfer_change")]
            lines.append(f"| {request} | `{part}` | {' | '.join(values)} |")
    return lines


def directions_table() -> list[str]:
    """Return the cost of each direction of POUR-P on an ordinary head, over classes and seeds."""
    lines = [
        "| backbone | test images | direction | change of Acc_r, mean | worst | Acc_f, mean | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("lite0", "dinov2"):
        found = load(f"directions/{name}-cpu.json")
        rows = found["rows"]
        for split, direction in dict.fromkeys((row["split"], row["direction"]) for row in rows):
            chosen = [row for row in rows if (row["split"], row["direction"]) == (split, direction)]
            changes = [row["acc_r"] - row["acc_r_before"] for row in chosen]
            left = [row["acc_f"] for row in chosen]
            lines.append(
                f"| {found['weights']} | {split} | {direction} | {sum(changes) / len(changes):+.2f} | "
                f"{min(changes):+.2f} | {sum(left) / len(left):.1f} | {max(left):.1f} |"
            )
    return lines


def methods_table() -> list[str]:
    """Every method with its own defaults on CIFAR-10, means over the seeds that were run."""
    found = load("methods/cifar10-h200.json")
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        rows.setdefault(row["method"], []).append(row)
    columns = {"Acc_r": "acc_r", "Acc_f": "acc_f", "AUS": "aus", "RUS(o)": "rus_o", "RUS(r)": "rus_r"}
    lines = [
        f"| method | seeds | {' | '.join(columns)} | probe | seconds |",
        "|---|---|" + "---|" * (len(columns) + 2),
    ]
    for method in sorted(rows, key=lambda name: (name not in ("original", "retrain"), name)):
        entries = rows[method]
        if "failed" in entries[0]:
            lines.append(f"| {method} | {len(entries)} | {'- | ' * (len(columns) + 1)}diverged |")
            continue
        mean = {
            key: sum(entry[key] for entry in entries) / len(entries)
            for key, value in entries[0].items()
            if isinstance(value, float)
        }
        cells = [
            f"{mean[key]:.2f}" if name.startswith(("AUS", "RUS")) else f"{100 * mean[key]:.2f}"
            for name, key in columns.items()
        ]
        seconds = f"{mean['seconds']:.1f}" if "seconds" in mean else "-"
        lines.append(
            f"| {method} | {len(entries)} | {' | '.join(cells)} | {100 * mean['probe_linear']:.1f} | {seconds} |"
        )
    return lines


def whole_table(name: str) -> list[str]:
    """Every row and column, the paper's values beside ours."""
    return render(make_table(grid(name), against="paper"), "markdown").rstrip().splitlines()


def short_cifar_table(name: str) -> list[str]:
    """The paper's methods and the controls, without the common setting and with the columns that decide."""
    columns = ("acc_r", "acc_f", "aus", "rus_o", "rus_r", "probe")
    table = make_table(grid(name), columns=columns, against="paper")
    rows = [row for row in table.rows if row.setting != "common" and not row.encoder and row.name not in _LEFT_OUT]
    rows = [row for row in rows if not row.name.removesuffix("-tuned").startswith(methods_of("relatives"))]
    names = {row.name for row in table.rows} - {row.name for row in rows}
    notes = tuple(note for note in table.notes if not set(re.findall(r"[\w-]+", note)) & names)
    return render(dataclasses.replace(table, rows=tuple(rows), notes=notes), "markdown").rstrip().splitlines()


def few_rows(name: str, rows: tuple[str, ...], columns: tuple[str, ...]) -> list[str]:
    """Chosen rows and columns of a grid without the paper's values, for the top of a page.

    Args:
        name: Name of the published file of the experiment.
        rows: Names of the rows, from top to bottom.
        columns: Keys of the columns.
    """
    table = make_table(grid(name), columns=columns)
    found = {row.name: row for row in reversed(table.rows) if not row.encoder}
    lines = [f"| method | {' | '.join(column.label for column in table.columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in map(found.__getitem__, rows):
        label = f"{row.label}, {row.setting}" if row.setting else row.label
        cells = []
        for column in table.columns:
            entry = row.entries.get(column.key)
            cells.append("-" if entry is None else f"{entry.mean:.{2 if abs(entry.mean) < 2 else 1}f}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def class_table(name: str) -> list[str]:
    """Every row that ran on more than one class, and what it did to each."""
    table = make_table(grid(name), columns=("acc_r_change", "acc_f", "rus_r", "answers_r"), by_class=True)
    several = [row for row in table.rows if len({key.partition(".")[2] for key in row.entries}) > 1]
    rows = tuple(row for row in several if not row.encoder and row.name != "pour-p-scores")
    # A row that did not run on the other classes has no line.
    notes = tuple(note for note in table.notes if "Not run" not in note and _is_of(note, {row.name for row in rows}))
    return render(dataclasses.replace(table, rows=rows, notes=notes), "markdown").rstrip().splitlines()


def _is_of(note: str, rows: set[str]) -> bool:
    """Whether a note is about one of ``rows``, or about none at all."""
    named = set(re.findall(r"[\w-]+-(?:tuned|common|default)", note))
    return not named or bool(named & rows)


def repeat_table() -> list[str]:
    """CIFAR-10's two runs: how far apart the means of equal rows are, and which moved by more than two points."""
    stores = grid("cifar10"), grid("cifar10-earlier")
    table, other = make_table(stores[0], against=stores[1]), other_options(*map(read_store, stores))
    pairs = [
        (row, before)
        for row, before in pairwise(table.rows)
        if before.elsewhere and not row.encoder and row.name not in other
    ]
    lines = [
        f"| {len(pairs)} rows with the same options | median | largest | beyond two deviations |",
        "|---|---|---|---|",
    ]
    for column in table.columns:
        moved = {
            (row.label, row.setting): abs(row.entries[column.key].mean - before.entries[column.key].mean)
            for row, before in pairs
            if column.key in row.entries.keys() & before.entries.keys()
        }
        (label, setting), largest = max(moved.items(), key=lambda item: item[1])
        beyond = sum(row.entries[column.key].difference is not None for row, _ in pairs if column.key in row.entries)
        named = f"{label}, {setting}" if setting else label
        lines.append(f"| {column.label} | {median(moved.values()):.2f} | {largest:.2f} ({named}) | {beyond} |")
    lines += ["", "| row | Acc_r, earlier | Acc_r | Acc_f, earlier | Acc_f |", "|---|---|---|---|---|"]
    for row, before in pairs:
        both = [(before.entries[key], row.entries[key]) for key in ("acc_r", "acc_f")]
        if any(abs(after.mean - earlier.mean) > 2 for earlier, after in both):
            values = [f"{entry.mean:.1f} ± {entry.std:.1f}" for pair in both for entry in pair]
            lines.append(f"| {row.label}{f', {row.setting}' if row.setting else ''} | {' | '.join(values)} |")
    return lines


def batch_norm_table() -> list[str]:
    """Methods that see retained images, tuned with BatchNorm frozen and with BatchNorm training, on their test."""
    columns = ("acc_r", "acc_f", "aus", "rus_o", "rus_r", "probe")
    stores = {"frozen": "cifar10", "training": "cifar10-batchnorm"}
    tables = {mode: make_table(grid(store), columns=columns) for mode, store in stores.items()}
    labels = [column.label for column in tables["frozen"].columns]
    lines = [
        f"| method | BatchNorm | {' | '.join(labels)} |",
        "|---|---|" + "---|" * len(labels),
    ]
    for method in ("finetune", "scrub"):
        for mode in stores:
            row = tables[mode].row(f"{method}-tuned")
            entries = [row.entries[column] for column in columns]
            values = [f"{entry.mean:.2f}±{entry.std:.2f}" for entry in entries]
            lines.append(f"| {row.label} | {mode} | {' | '.join(values)} |")
    return lines


def other_classes_table() -> list[str]:
    """Acc_f and RUS(r) of a few methods on each class of CIFAR-10 that was forgotten."""
    table = make_table(grid("cifar10"), columns=("acc_f", "rus_r"), by_class=True)
    found = {row.name: row for row in reversed(table.rows) if not row.encoder}
    names = {column.key: column.label for column in table.columns}
    lines = [f"| method | {' | '.join(names.values())} |", "|---" * (len(names) + 1) + "|"]
    for name in ("ceiling", "pour-p", "pour-p-decisions", "pour-d-default", "delete-tuned", "projun"):
        row = found[name]
        label = f"{row.label}, {row.setting}" if row.setting else row.label
        values = [f"{row.entries[key].mean:.{2 if key.startswith('rus') else 1}f}" for key in names]
        lines.append(f"| {label} | {' | '.join(values)} |")
    return lines


def sweep_table(*, short: bool = False) -> list[str]:
    """POUR-D at growing learning rates and lengths on one network, and the control beside it on three.

    Args:
        short: Only the original, the rates that raise RUS(o) most, and the controls.
    """
    swept, blended = (load(f"methods/pour-d-cifar10-{name}.json")["rows"] for name in ("h200", "blend-h200"))
    lines = [
        "| rate, times the default | schedule | steps | BatchNorm | Acc_r | Acc_f | RUS(o) | RUS(r) | probe |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in swept:
        lead = {
            "original": ["untouched", "", "", ""],
            "pour-d": [f"{row.get('factor', 0):g}", row.get("schedule"), row.get("steps"), row.get("batch_norm")],
            "finetune": [
                "last block trained again",
                row.get("schedule"),
                f"epochs: {row.get('epochs')}",
                row.get("batch_norm"),
            ],
        }[row["method"]]
        lines.append(_sweep_line(lead, [row]))
    seeds: dict[str, list[dict[str, Any]]] = {}
    for row in blended:
        name = f"spread class, anchor {row['anchor']:g}" if "anchor" in row else "untouched"
        seeds.setdefault(name, []).append(row)
    if short:
        # The default rate, ten times this rate, and the last block trained again.
        chosen = [
            line for line in lines if re.match(r"\| (untouched|(1|10) \| cosine \| 400 \| frozen|last block)", line)
        ]
        lines = [*lines[:2], *chosen[:4]]
        seeds.pop("untouched", None)
    lines += [_sweep_line([f"{name} ({len(rows)} seeds)", "", "", ""], rows) for name, rows in seeds.items()]
    return _without(lines, 1, 3) if short else lines


def _without(lines: list[str], *columns: int) -> list[str]:
    """Return a Markdown table without the columns at these positions."""
    rows = [line.strip().strip("|").split("|") for line in lines]
    return ["|" + "|".join(cell for i, cell in enumerate(row) if i not in columns) + "|" for row in rows]


def _sweep_line(lead: list[object], rows: list[dict[str, Any]]) -> str:
    start = f"| {' | '.join(map(str, lead))} |"
    if any("failed" in row for row in rows):
        return f"{start} diverged | | | | |"
    values = []
    for column, scale, digits in (
        ("acc_r", 100, 2),
        ("acc_f", 100, 2),
        ("rus_o", 1, 2),
        ("rus_r", 1, 2),
        ("probe_linear", 100, 1),
    ):
        found = [scale * row[column] for row in rows]
        spread = f"±{stdev(found):.{digits}f}" if len(found) > 1 else ""
        values.append(f"{mean(found):.{digits}f}{spread}")
    return f"{start} {' | '.join(values)} |"


def first_call_table() -> list[str]:
    """Every method at its defaults on the six networks of the test bed, the best first."""
    file = ROOT / "src" / "pour" / "unlearning" / "first_call.json"
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text())["methods"]
    lines = [
        "| method | good | change of Acc_r: mean (worst) | Acc_f: mean (worst) | seconds |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(rows, key=lambda name: (-rows[name].get("good", -1), rows[name].get("acc_f", 100.0), name)):
        row = rows[name]
        failed = f" ({row['failed']} failed)" if row["failed"] else ""
        good = f"| {name} | {row.get('good', 0)} of {row['networks']}{failed} "
        if "acc_f" not in row:
            lines.append(f"{good}| - | - | - |")
            continue
        lines.append(
            f"{good}| {row['change_acc_r']:+.1f} ({row['worst_change_acc_r']:+.1f}) "
            f"| {row['acc_f']:.1f} ({row['worst_acc_f']:.1f}) | {row['seconds']:.1f} |"
        )
    return lines


def fresh_table() -> list[str]:
    """POUR-A and its rivals at their defaults on networks that no setting was chosen on."""
    rows = load("first_call/fresh.json")["rows"]
    lines = [
        "| method | change of Acc_r: mean (worst) | Acc_f: mean (worst) | encoder alone: mean (at most 3 %) "
        "| seconds | time over POUR-D: mean (worst) |",
        "|---|---|---|---|---|---|",
    ]
    pour_d = {(row["network"], row["class"], row["seed"]): row["seconds"] for row in rows if row["name"] == "pour-d"}
    for name in dict.fromkeys(row["name"] for row in rows):
        found = [row for row in rows if row["name"] == name]
        changes = [row.get("kept_acc_r", row["acc_r"]) - row["original_acc_r"] for row in found]
        left = [row.get("kept_acc_f", row["acc_f"]) for row in found]
        alone = [row["unprojected_acc_f"] for row in found]
        ratios = [row["seconds"] / pour_d[row["network"], row["class"], row["seed"]] for row in found]
        lines.append(
            f"| {name} | {mean(changes):+.1f} ({min(changes):+.1f}) | {mean(left):.1f} ({max(left):.1f}) "
            f"| {mean(alone):.1f} ({sum(one <= 3 for one in alone)} of {len(alone)}) "
            f"| {mean(row['seconds'] for row in found):.1f} | {mean(ratios):.1f} ({max(ratios):.1f}) |"
        )
    return lines


def real_networks_table() -> list[str]:
    """POUR-A at its defaults on networks that know real images."""
    lines = [
        "| network | class | original Acc_r / Acc_f | released | encoder alone | seconds | steps | rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in ("cifar10-small", "efficientnet-lite0", "dinov2-small"):
        for row in load(f"first_call/{name}.json")["rows"]:
            pairs = (f"{row[role][0]:.1f} / {row[role][1]:.1f}" for role in ("original", "released", "encoder"))
            lines.append(
                f"| {name} | {row['class']} | {' | '.join(pairs)} | {row['seconds']:.0f} | {row['steps']} "
                f"| {row['chosen']['lr']:g} |"
            )
    return lines


def recalibration_table() -> list[str]:
    """Return the networks before and after BatchNorm's statistics were computed again on retained images."""
    lines = [
        "| data | network | Acc_r | Acc_f | Acc_r, recalibrated | Acc_f, recalibrated |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("digits-cpu", "cifar10-small-cpu"):
        found = load(f"methods/recalibration-{name}.json")
        for row in found["rows"]:
            values = [row[when][key] for when in ("before", "after") for key in ("acc_r", "acc_f")]
            cells = " | ".join(f"{100 * value:.1f}" for value in values)
            lines.append(f"| {found['data']} | {row['network']} | {cells} |")
    return lines


def warmup_table() -> list[str]:
    """POUR-D with and without a warm-up on CIFAR-100, on classes and a seed that no other table has."""
    found = load("methods/pour-d-cifar100-cpu.json")
    classes: dict[str, dict[str, str]] = {}
    for row in found["rows"]:
        kind = row.get("schedule", row["method"])
        classes.setdefault(row["forget"], {})[kind] = f"{100 * row['acc_r']:.2f} | {100 * row['acc_f']:.2f}"
    kinds = ("original", "cosine", "one-cycle")
    lines = [
        f"| class | {' | | '.join(kinds)} | |",
        "|---|" + "---|---|" * len(kinds),
        "| |" + " Acc_r | Acc_f |" * len(kinds),
    ]
    return lines + [f"| {name} | {' | '.join(values[kind] for kind in kinds)} |" for name, values in classes.items()]


def study_table(name: str) -> list[str]:
    """Return the cost of forgetting each class, and its distance from the other classes."""
    found = load(f"study/{name}.json")["separation"]["result"]
    labels = {"pour-p": "POUR-P", "pour-d": "POUR-D", "gradient-ascent": "gradient ascent", "delete": "DELETE"}
    lines = [
        f"| class | separation | nearest | {' | '.join(labels.values())} |",
        "|---|---|---|" + "---|" * len(labels),
    ]
    for entry in sorted(found["classes"], key=lambda entry: entry["energy"]):
        costs = [entry["methods"][method] for method in labels]
        cells = [
            "diverged" if cost is None else f"{100 * cost['acc_r_change']:+.1f} ({100 * cost['acc_f']:.1f})"
            for cost in costs
        ]
        lines.append(f"| {entry['name']} | {entry['energy']:.3f} | {entry['nearest']} | {' | '.join(cells)} |")
    rho = [found["correlation"][method] for method in labels]
    cells = ["-" if value is None else f"{value:+.2f}" for value in rho]
    return [*lines, f"| rank correlation | | | {' | '.join(cells)} |"]


def terms_table(name: str) -> list[str]:
    """The bound's three terms at the start and at the end of each method that was followed."""
    lines = [
        "| method | step | Acc_r | Acc_f | alpha | separation term | retained term | distance |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in ("pour-d", "delete", "gradient-ascent"):
        looks = load(f"study/{name}.json")[f"trajectory-{method}"]["result"]["looks"]
        for look in (looks[0], looks[-1]):
            terms = look["terms"]["energy"]
            values = [terms[term] for term in ("alpha", "separation", "retained", "total")]
            cells = ["-" if value is None else f"{value:.3f}" for value in values]
            lines.append(
                f"| {method} | {look['step']} | {100 * look['acc_r']:.1f} | {100 * look['acc_f']:.1f} | "
                f"{' | '.join(cells)} |"
            )
    return lines


CIFAR100_ROWS = ("original", "ceiling", "pour-p", "pour-d-default", "delete-tuned", "duck-tuned")
PATHMNIST_ROWS = ("original", "masked-head", "pour-p", "pour-d-tuned", "delete-tuned", "fcs-tuned")
PATHMNIST_COLUMNS = ("acc_r", "acc_f", "aus", "acc_r_external", "acc_f_external", "aus_external", "rus_o")
CIFAR_COLUMNS = ("acc_r", "acc_f", "aus", "rus_o", "rus_r", "probe")
CIFAR10_ROWS = ("original", "ceiling", "masked-head", "pour-p", "pour-d-default", "delete-tuned")

TABLES = {
    "README.md": {"readme": readme_table},
    "docs/results/cifar10.md": {
        "cifar10-short": partial(few_rows, "cifar10", CIFAR10_ROWS, CIFAR_COLUMNS),
        "cifar10": partial(whole_table, "cifar10"),
        "cifar10-batch-norm": batch_norm_table,
    },
    "docs/results/cifar100.md": {
        "cifar100-short": partial(few_rows, "cifar100", CIFAR100_ROWS, CIFAR_COLUMNS),
        "cifar100-fast-short": partial(few_rows, "cifar100-fast", CIFAR100_ROWS, CIFAR_COLUMNS),
        "cifar100": partial(whole_table, "cifar100"),
        "cifar100-fast": partial(short_cifar_table, "cifar100-fast"),
        "cifar100-classes": partial(class_table, "cifar100-fast"),
        "cifar100-warm-up": warmup_table,
    },
    "docs/results/other-classes.md": {
        "other-classes-short": other_classes_table,
        "other-classes": partial(class_table, "cifar10"),
    },
    "docs/results/rus-o.md": {"rus-o-short": partial(sweep_table, short=True), "rus-o": sweep_table},
    "docs/results/repeat.md": {"repeat": repeat_table},
    "docs/results/account.md": {
        "account-terms": partial(terms_table, "cifar10"),
        "account-classes": partial(study_table, "cifar10"),
        "account-terms-small": partial(terms_table, "cifar10-small"),
        "account-classes-small": partial(study_table, "cifar10-small"),
    },
    "docs/results/first-call.md": {
        "first-call": first_call_table,
        "first-call-fresh": fresh_table,
        "first-call-real": real_networks_table,
        "first-call-cifar10": methods_table,
    },
    "docs/results/pathmnist.md": {
        "pathmnist-short": partial(few_rows, "pathmnist", PATHMNIST_ROWS, PATHMNIST_COLUMNS),
        "pathmnist": partial(whole_table, "pathmnist"),
        "pathmnist-directions": directions_table,
    },
    "docs/results/camvid.md": {"camvid-short": camvid_short, "camvid": camvid_table},
    "docs/results/zeroshot.md": {"zeroshot-short": zeroshot_short, "zeroshot": zeroshot_table},
    "docs/results/speed.md": {
        "speed-training": training_table,
        "speed-rivals": rivals_table,
        "speed-collapse": collapse_table,
    },
    "docs/how-to/after-forgetting.md": {"recalibration": recalibration_table},
}


def fill(text: str, file: str) -> str:
    """Return the text of a page with every marked table written again, as far indented as its mark."""
    for name, table in TABLES[file].items():
        lines = table()

        def block(match: re.Match[str], name: str = name, lines: list[str] = lines) -> str:
            rows = [f"<!-- results: {name} -->", "", *lines, "", "<!-- end -->"]
            return "\n".join(f"{match[1]}{row}" if row else "" for row in rows)

        text, count = re.subn(
            rf"^([ ]*)<!-- results: {name} -->.*?<!-- end -->", block, text, flags=re.DOTALL | re.MULTILINE
        )
        if count != 1:
            raise SystemExit(f"{file} has {count} places for the table {name!r}; it needs one.")
    return text


def as_csv(lines: list[str]) -> str:
    """Return the rows of a Markdown table as CSV, without marks of bold and underlined text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for line in lines:
        if line.startswith("|") and not re.fullmatch(r"[|:\s-]+", line):
            cells = line.strip().strip("|").split(" | ")
            writer.writerow([re.sub(r"\*\*?|</?u>", "", cell).strip(" |") for cell in cells])
    return out.getvalue()


def files() -> dict[Path, str]:
    """Return the text of every page with tables, and of a CSV file beside a results page for each of its tables."""
    found = {}
    for file, tables in TABLES.items():
        page = ROOT / file
        found[page] = fill(page.read_text(encoding="utf-8"), file)
        if page.parent.name == "results":
            found |= {page.with_name(f"{name}.csv"): as_csv(table()) for name, table in tables.items()}
    return found


def main() -> None:
    """Rewrite the files in place."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
