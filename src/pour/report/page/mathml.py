"""Formulas for a page that loads nothing: a small part of LaTeX's notation, written as MathML."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

__all__ = ["mathml"]

_TOKEN = re.compile(
    r"\s*(?:(?P<command>\\[a-z]+)|(?P<number>\d+(?:\.\d+)?)|(?P<word>[^\W\d_]+)|\"(?P<text>[^\"]*)\"|(?P<sign>\S))"
)
_COMMANDS = {r"\frac": ("mfrac", 2), r"\sqrt": ("msqrt", 1), r"\bar": ("mover", 1)}
_SUM = Markup("<mo>∑</mo>")
_SPACE = Markup('<mspace width="0.2em"></mspace>')
# A hyphen is shorter than the sign that it stands for.
_SIGNS = {"-": "\u2212"}


def mathml(source: str) -> Markup:
    r"""Write a formula as a ``<math>`` element.

    Words and letters are names, quoted text is prose, ``_`` and ``^`` make indices and powers of what follows (braces
    group), ``~`` is a thin space, and there are ``\frac{}{}``, ``\sqrt{}``, ``\bar{}`` and ``\sum``.

    Example:
        >>> print(mathml(r"\frac{1}{n} x_i^2"))
        <math display="block"><mfrac><mrow><mn>1</mn></mrow><mrow><mi>n</mi></mrow></mfrac><msubsup>...</msubsup></math>
    """
    parts, rest = _sequence(source)
    if rest.strip():
        raise ValueError(f"The formula {source!r} has a brace too many before {rest!r}.")
    return Markup('<math display="block">{}</math>').format(parts)


def _sequence(source: str) -> tuple[Markup, str]:
    """Everything up to the end or to a closing brace, which is left in the rest."""
    parts: list[Markup] = []
    while source.strip() and not source.lstrip().startswith("}"):
        part, source = _with_scripts(source)
        parts.append(part)
    return Markup("").join(parts), source


def _with_scripts(source: str) -> tuple[Markup, str]:
    base, source = _atom(source)
    scripts: dict[str, Markup] = {}
    while source[:1] in ("_", "^") and source[0] not in scripts:
        mark = source[0]
        scripts[mark], source = _atom(source[1:])
    if not scripts:
        return base, source
    if base == _SUM:
        # What a sum runs over stands under it.
        return Markup("<munder>{}{}</munder>").format(base, scripts["_"]), source
    tag = {"_": "msub", "^": "msup", "_^": "msubsup"}["".join(sorted(scripts, reverse=True))]
    inside = Markup("").join([base, *(scripts[mark] for mark in "_^" if mark in scripts)])
    return Markup(f"<{tag}>{inside}</{tag}>"), source  # noqa: S704


def _atom(source: str) -> tuple[Markup, str]:
    found = _TOKEN.match(source)
    if found is None:
        raise ValueError("A formula ends where an index or an argument was expected.")
    rest = source[found.end() :]
    if found["command"] == r"\sum":
        return _SUM, rest
    if found["sign"] == "~":
        return _SPACE, rest
    if found["command"]:
        tag, count = _COMMANDS[found["command"]]
        parts: list[Markup] = []
        for _ in range(count):
            part, rest = _atom(rest)
            parts.append(part)
        if tag == "mover":
            parts.append(Markup("<mo>¯</mo>"))
        return Markup(f"<{tag}>{Markup('').join(parts)}</{tag}>"), rest  # noqa: S704
    if found["sign"] == "{":
        inside, rest = _sequence(rest)
        if not rest.lstrip().startswith("}"):
            raise ValueError("A formula has an open brace.")
        return Markup("<mrow>{}</mrow>").format(inside), rest.lstrip()[1:]
    if found["text"] is not None:
        return Markup("<mtext>\N{NO-BREAK SPACE}{}\N{NO-BREAK SPACE}</mtext>").format(found["text"]), rest
    for kind, tag in (("number", "mn"), ("word", "mi"), ("sign", "mo")):
        if found[kind] is not None:
            return Markup(f"<{tag}>{escape(_SIGNS.get(found[kind], found[kind]))}</{tag}>"), rest  # noqa: S704
    raise ValueError(f"The formula {source!r} cannot be read.")
