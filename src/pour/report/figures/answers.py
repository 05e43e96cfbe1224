"""What the models call the forgotten images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, ROLE_TITLES, Theme, drawing, finish, listed, plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from pour.auditing.report import AuditReport

__all__ = ["AnswersData", "answers_data", "draw_answers"]

_MOST = 16
_HATCHES = {"retrained": "////", "retrained_second": "\\\\\\\\"}


@dataclass(frozen=True, kw_only=True)
class AnswersData:
    """The share of each answer on test images of the forgotten classes."""

    shares: Mapping[str, NDArray[np.float64]]
    """(k,) by role, for the classes shown."""
    labels: tuple[int, ...]
    """(k,) the classes shown, in their own order."""
    others: Mapping[str, float]
    """By role, the share of all classes that are not shown."""
    classes: tuple[str, ...]
    """Names of all classes."""
    forgotten: tuple[int, ...]
    images: int
    """How many images were asked about."""

    @property
    def hidden(self) -> int:
        """How many classes are not shown."""
        return len(self.classes) - len(self.labels)


def answers_data(report: AuditReport, *, most: int = _MOST) -> AnswersData:
    """Take the answers from a report; of many classes, the forgotten ones and the most frequent answers.

    Args:
        report: what :func:`pour.audit` found.
        most: how many classes to show.
    """
    if not report.answers:
        raise UsageError("The report holds no answers on forgotten images; audit again with this version.")
    counts = {role: np.array(values, float) for role, values in report.answers.items()}
    totals = {role: max(float(values.sum()), 1.0) for role, values in counts.items()}
    shares = {role: values / totals[role] for role, values in counts.items()}
    gone = report.data.forgotten
    size = len(report.data.classes)
    if size <= most:
        labels = tuple(range(size))
    else:
        # A class matters as the favourite answer of any model.
        frequent = np.argsort(-np.max(list(shares.values()), axis=0), kind="stable").tolist()
        chosen = [*gone[:most], *(label for label in frequent if label not in gone)][:most]
        labels = tuple(sorted(chosen))
    return AnswersData(
        shares={role: values[list(labels)] for role, values in shares.items()},
        labels=labels,
        others={role: float(values.sum() - values[list(labels)].sum()) for role, values in shares.items()},
        classes=report.data.classes,
        forgotten=gone,
        images=round(max(float(values.sum()) for values in counts.values())),
    )


def draw_answers(data: AnswersData, *, theme: Theme = "light") -> Figure:
    """Draw the shares as bars, one to a model and class, with the even share over retained classes as a line."""
    roles = list(data.shares)
    places = np.arange(len(data.labels) + bool(data.hidden))
    width = 0.82 / len(roles)
    with drawing(theme) as style:
        figure = style.figure(FULL_WIDTH, 2.55)
        axes = figure.subplots()
        for i, role in enumerate(roles):
            heights = [*data.shares[role], data.others[role]][: len(places)]
            axes.bar(
                places + (i - (len(roles) - 1) / 2) * width,
                heights,
                width * 0.94,
                color=style.role_color(role),
                hatch=_HATCHES.get(role),
                edgecolor=style.background,
                linewidth=0,
                label=ROLE_TITLES.get(role, plain_text(role)),
            )
        retained = len(data.classes) - len(data.forgotten)
        if retained > 1:
            axes.axhline(
                1 / retained,
                color=style.muted,
                linewidth=0.9,
                linestyle=(0, (3, 2)),
                zorder=3,
                label="even over retained classes",
            )
        names = [plain_text(data.classes[label], length=16) for label in data.labels]
        names += [f"{data.hidden:,} others"] if data.hidden else []
        gone = [place for place, label in enumerate(data.labels) if label in data.forgotten]
        style.name_places(axes, names, gone, width=FULL_WIDTH - 0.7)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlim(-0.6, len(places) - 0.4)
        axes.set_ylabel("share of answers")
        axes.grid(axis="y")
        handles, texts = axes.get_legend_handles_labels()
        order = sorted(range(len(handles)), key=lambda i: isinstance(handles[i], Line2D))
        figure.legend(
            [handles[i] for i in order], [texts[i] for i in order], loc="outside upper center", ncols=len(handles)
        )
        asked = listed([data.classes[label] for label in data.forgotten])
        style.note(figure, [plain_text(f"Answers on {data.images:,} test images of {asked}.", length=140)])
        favourites = [f"{role} mostly {_favourite(data, role)}" for role in roles]
        return finish(figure, f"What models call {data.images:,} images of {asked}: {', '.join(favourites)}.")


def _favourite(data: AnswersData, role: str) -> str:
    best = int(np.argmax(data.shares[role]))
    return f"{listed([data.classes[data.labels[best]]])} ({100 * data.shares[role][best]:.0f} %)"
