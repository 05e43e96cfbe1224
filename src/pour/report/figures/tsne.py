"""Two ways to compute a t-SNE map that several models share."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pour.errors import UsageError, check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EmbeddingMethod", "fixed_map", "joint_map", "resolve_method"]

EmbeddingMethod = Literal["auto", "opentsne", "scikit-learn"]
"""openTSNE computes the original's map and puts the other models into it; scikit-learn maps all models together."""
Points = NDArray[np.float64]

_COMPONENTS = 50
_PERPLEXITY = 30.0


def resolve_method(method: EmbeddingMethod) -> Literal["opentsne", "scikit-learn"]:
    """Return the library to use. Raise UsageError if openTSNE is requested but not installed."""
    check_choice("method", method, get_args(EmbeddingMethod))
    installed = importlib.util.find_spec("openTSNE") is not None
    if method == "opentsne" and not installed:
        raise UsageError(
            'A map by openTSNE needs the extra: pip install "pour-unlearning[report]", or choose scikit-learn.'
        )
    return "opentsne" if installed and method != "scikit-learn" else "scikit-learn"


def joint_map(parts: Sequence[Points], seed: int) -> Points:
    """Map the rows of all models together with scikit-learn, `(sum of n, 2)` in the given order."""
    from sklearn.manifold import TSNE

    threads = importlib.import_module("threadpoolctl")
    rows = np.concatenate(_components(parts, np.concatenate(parts)))
    tsne = TSNE(
        perplexity=min(_PERPLEXITY, (len(rows) - 1) / 3),
        init=_start(rows).astype(np.float32),
        learning_rate="auto",
        random_state=seed,
        n_jobs=1,
    )
    # Threads add in varying order, and t-SNE turns another rounding into another map.
    with threads.threadpool_limits(1):
        return np.asarray(tsne.fit_transform(rows.astype(np.float32)), np.float64)


def fixed_map(parts: Sequence[Points], seed: int) -> Points:
    """Map the rows of the first model with openTSNE and put the others into the same map, `(sum of n, 2)`."""
    opentsne = importlib.import_module("openTSNE")
    original, *others = _components(parts, parts[0])
    neighbours = min(_PERPLEXITY, (len(original) - 1) / 3)
    tsne = opentsne.TSNE(
        perplexity=neighbours, initialization=_start(original), n_jobs=1, random_state=seed, neighbors="exact"
    )
    fixed = tsne.fit(original)
    placed = [fixed, *(fixed.transform(rows, perplexity=min(5, neighbours)) for rows in others)]
    points: Points = np.concatenate([np.asarray(part) for part in placed]).astype(np.float64)
    return points


def _components(parts: Sequence[Points], basis_rows: Points) -> list[Points]:
    """Return coordinates along the principal axes of `basis_rows`: fixed signs, at least two columns."""
    center = basis_rows.mean(axis=0)
    _, _, axes = np.linalg.svd(basis_rows - center, full_matrices=False)
    axes = axes[:_COMPONENTS]
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)] + 1e-300)[:, None]
    coordinates = [(part - center) @ axes.T for part in parts]
    return [np.pad(part, ((0, 0), (0, max(0, 2 - part.shape[1])))) for part in coordinates]


def _start(rows: Points) -> Points:
    first = rows[:, :2]
    return first / max(float(first[:, 0].std()), 1e-12) * 1e-4
