"""Relearning curves: accuracy on the forgotten classes during a short fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, ROLE_TITLES, Theme, drawing, finish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from pour.auditing.relearning import RelearningCurve

__all__ = ["draw_relearning"]

_LINES = {"original": "-", "unlearned": "-", "retrained": (0, (5, 1.5)), "retrained_second": (0, (3, 2))}
_MARKERS = {"original": "s", "unlearned": "o", "retrained": "^", "retrained_second": "v"}


def draw_relearning(curves: Sequence[RelearningCurve], *, theme: Theme = "light") -> Figure:
    """Draw the test accuracy after each number of steps with 95 % bands: forgotten classes left, retained right.

    Args:
        curves: Relearning curves of an `AuditReport`.
        theme: Light or dark.
    """
    if not curves:
        raise UsageError("There is no relearn curve to draw; run the audit with relearning.")
    with drawing(theme) as style:
        figure = style.figure(FULL_WIDTH, 2.6)
        panels = figure.subplots(1, 2, sharey=True)
        steps = sorted({step for curve in curves for step in curve.steps})
        for axes, side in zip(panels, ("forget", "retain"), strict=True):
            for curve in sorted(curves, key=lambda curve: curve.role != "original"):
                readings = getattr(curve, side)
                color, is_original = style.role_color(curve.role), curve.role == "original"
                bounds = np.array([reading.bounds for reading in readings])
                axes.fill_between(curve.steps, *bounds.T, color=color, alpha=0.16, linewidth=0)
                axes.plot(
                    curve.steps,
                    [reading.value for reading in readings],
                    color=color,
                    # A projected model relearns exactly like the original, so the lower curve must remain visible.
                    linewidth=4.0 if is_original else 1.5,
                    alpha=0.5 if is_original else 1.0,
                    linestyle=_LINES[curve.role],
                    marker=_MARKERS[curve.role],
                    markersize=3.5,
                    label=ROLE_TITLES[curve.role],
                )
            # Steps range over decades and start at 0.
            axes.set_xscale("symlog", linthresh=1, linscale=0.4)
            axes.xaxis.set_major_locator(FixedLocator(_distant(steps)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set(ylim=(-0.03, 1.03), xlabel="fine-tuning steps", xlim=(min(steps) - 0.04, max(steps) * 1.12))
            axes.grid(axis="y")
        panels[0].set_title("forgotten classes", color=style.forgotten)
        panels[1].set_title("retained classes")
        panels[0].set_ylabel("test accuracy")
        style.legend(figure, panels[0].get_legend_handles_labels()[0])
        counts = sorted({curve.images_per_class for curve in curves})
        notes = [f"Fine-tuned on {' or '.join(map(str, counts))} training images of each class."]
        words = [
            f"{curve.role} from {100 * curve.forget[0].value:.0f} to {100 * curve.forget[-1].value:.0f} %"
            for curve in curves
        ]
        text = f"Accuracy on the forgotten classes over {max(steps)} steps of fine-tuning: {', '.join(words)}."
        return finish(style, figure, text, notes)


def _distant(steps: Sequence[int]) -> list[int]:
    """Return the steps to name on the axis, each far enough from the previous one."""
    named = [steps[0]]
    for step in steps[1:]:
        if named[-1] == 0 or step >= 1.6 * named[-1]:
            named.append(step)
    return named
