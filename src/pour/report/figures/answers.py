"""Answers of the models to images of the forgotten classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, ROLE_TITLES, ClassNames, Theme, drawing, finish, listed, plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from pour.auditing.report import AuditReport

__all__ = ["AnswersData", "answers_data", "draw_answers"]

_MOST = 16
_HATCHES = {"retrained": "////", "retrained_second": "\\\\\\\\"}


@dataclass(frozen=True, kw_only=True)
class AnswersData(ClassNames):
    """Share of each answer on test images of the forgotten classes."""

    shares: Mapping[str, NDArray[np.float64]]
    """Shares of the drawn classes by role, each (k,)."""
    labels: tuple[int, ...]
    """Indices of the drawn classes in ascending order, (k,)."""
    others: Mapping[str, float]
    """Share of all other classes together, by role."""
    images: int
    """Number of images."""

    @property
    def hidden(self) -> int:
        """Number of classes that are not drawn."""
        return len(self.classes) - len(self.labels)


def answers_data(report: AuditReport) -> AnswersData:
    """Return the answers in a report: of many classes, the forgotten ones and the most frequent answers."""
    if not report.answers:
        raise UsageError("The report contains no answers on forgotten images; audit again with this version.")
    counts = {role: np.array(values, float) for role, values in report.answers.items()}
    shares = {role: values / max(float(values.sum()), 1.0) for role, values in counts.items()}
    forgotten, size = report.data.forgotten, len(report.data.classes)
    labels = list(range(size))
    if size > _MOST:
        # A class is frequent if any model often answers it.
        frequent = np.argsort(-np.max(list(shares.values()), axis=0), kind="stable").tolist()
        others = [label for label in frequent if label not in forgotten]
        labels = sorted([*forgotten[:_MOST], *others][:_MOST])
    return AnswersData(
        shares={role: values[labels] for role, values in shares.items()},
        labels=tuple(labels),
        others={role: float(values.sum() - values[labels].sum()) for role, values in shares.items()},
        classes=report.data.classes,
        forgotten=forgotten,
        images=round(max(float(values.sum()) for values in counts.values())),
    )


def draw_answers(data: AnswersData, *, theme: Theme = "light") -> Figure:
    """Draw one bar per model and class, and a line at the share of equally frequent retained classes."""
    roles = list(data.shares)
    places = np.arange(len(data.labels) + bool(data.hidden))
    width = 0.82 / len(roles)
    with drawing(theme) as style:
        figure = style.figure(FULL_WIDTH, 2.55)
        axes = figure.subplots()
        for i, role in enumerate(roles):
            axes.bar(
                places + (i - (len(roles) - 1) / 2) * width,
                [*data.shares[role], data.others[role]][: len(places)],
                width * 0.94,
                color=style.role_color(role),
                hatch=_HATCHES.get(role),
                edgecolor=style.background,
                linewidth=0,
                label=ROLE_TITLES.get(role, plain_text(role)),
            )
        retained = len(data.classes) - len(data.forgotten)
        if retained > 1:
            line = axes.axhline(1 / retained, label="even over retained classes")
            line.set(color=style.muted, linewidth=0.9, linestyle=(0, (3, 2)), zorder=3)
        names = [plain_text(data.classes[label], length=16) for label in data.labels]
        names += [f"{data.hidden:,} others"] if data.hidden else []
        forgotten_places = [place for place, label in enumerate(data.labels) if label in data.forgotten]
        style.name_places(axes, names, forgotten_places, width=FULL_WIDTH - 0.7)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlim(-0.6, len(places) - 0.4)
        axes.set_ylabel("share of answers")
        axes.grid(axis="y")
        # The line comes after the bars.
        style.legend(figure, sorted(axes.get_legend_handles_labels()[0], key=lambda key: isinstance(key, Line2D)))
        note = plain_text(f"Answers on {data.images:,} test images of {data.forgotten_words}.", length=140)
        words = [f"{role} mostly {_favourite(data, role)}" for role in roles]
        text = f"What models call {data.images:,} images of {data.forgotten_words}: {', '.join(words)}."
        return finish(style, figure, text, [note])


def _favourite(data: AnswersData, role: str) -> str:
    best = int(np.argmax(data.shares[role]))
    return f"{listed([data.classes[data.labels[best]]])} ({100 * data.shares[role][best]:.0f} %)"
