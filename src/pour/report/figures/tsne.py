"""Two ways to t-SNE maps that several models share."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["EmbeddingMethod", "fixed_map", "joint_map", "resolve_method"]

EmbeddingMethod = Literal["auto", "opentsne", "scikit-learn"]
"""openTSNE fixes the original's map and puts the others into it; scikit-learn maps all together."""

_COMPONENTS = 50


def resolve_method(method: EmbeddingMethod) -> Literal["opentsne", "scikit-learn"]:
    """Choose openTSNE where it is wanted or left open and installed."""
    if method not in get_args(EmbeddingMethod):
        raise UsageError(f"method is {method!r}; choose 'auto', 'opentsne' or 'scikit-learn'.")
    if method == "scikit-learn":
        return method
    there = importlib.util.find_spec("openTSNE") is not None
    if method == "opentsne" and not there:
        raise UsageError(
            'A map by openTSNE needs the extra: pip install "pour-unlearning[report]", or choose scikit-learn.'
        )
    return "opentsne" if there else "scikit-learn"


def joint_map(parts: Sequence[NDArray[np.float64]], perplexity: float, seed: int) -> NDArray[np.float64]:
    """Map all rows together with scikit-learn, ``(sum of n, 2)`` in the order given."""
    from sklearn.manifold import TSNE

    threads = importlib.import_module("threadpoolctl")
    everything = np.concatenate(parts)
    rows = np.concatenate(_components(parts, everything))
    tsne = TSNE(
        perplexity=min(perplexity, (len(rows) - 1) / 3),
        init=_start(rows).astype(np.float32),
        learning_rate="auto",
        random_state=seed,
        n_jobs=1,
    )
    # Threads add up in an order of their own, and t-SNE makes a different map of a different rounding.
    with threads.threadpool_limits(1):
        return np.asarray(tsne.fit_transform(rows.astype(np.float32)), np.float64)


def fixed_map(parts: Sequence[NDArray[np.float64]], perplexity: float, seed: int) -> NDArray[np.float64]:
    """Map the first part with openTSNE, then put the others into the same map, ``(sum of n, 2)`` in the order given."""
    opentsne = importlib.import_module("openTSNE")
    original, *others = _components(parts, parts[0])
    neighbours = min(perplexity, (len(original) - 1) / 3)
    tsne = opentsne.TSNE(
        perplexity=neighbours, initialization=_start(original), n_jobs=1, random_state=seed, neighbors="exact"
    )
    fixed = tsne.fit(original)
    placed = [np.asarray(fixed), *(np.asarray(fixed.transform(rows, perplexity=min(5, neighbours))) for rows in others)]
    joined: NDArray[np.float64] = np.concatenate(placed).astype(np.float64)
    return joined


def _components(parts: Sequence[NDArray[np.float64]], basis_of: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The coordinates along the principal axes of ``basis_of``, signs fixed, at least two columns."""
    center = basis_of.mean(axis=0)
    _, _, axes = np.linalg.svd(basis_of - center, full_matrices=False)
    axes = axes[:_COMPONENTS]
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)] + 1e-300)[:, None]
    found = [(part - center) @ axes.T for part in parts]
    return [np.pad(part, ((0, 0), (0, max(0, 2 - part.shape[1])))) for part in found]


def _start(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    first = rows[:, :2]
    return first / max(float(first[:, 0].std()), 1e-12) * 1e-4
