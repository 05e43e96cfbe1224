"""Formulas of a page that loads nothing: a small part of LaTeX's notation as MathML."""

from __future__ import annotations

import re

from markupsafe import Markup

__all__ = ["mathml"]

_TOKEN = re.compile(
    r"\s*(?:(?P<command>\\[a-z]+)|(?P<number>\d+(?:\.\d+)?)|(?P<word>[^\W\d_]+)|\"(?P<text>[^\"]*)\"|(?P<sign>\S))"
)
_COMMANDS = {r"\frac": ("mfrac", 2), r"\sqrt": ("msqrt", 1), r"\bar": ("mover", 1)}
_SUM = Markup("<mo>∑</mo>")
_CONSTANTS = {r"\sum": _SUM, "~": Markup('<mspace width="0.2em"></mspace>')}
# A hyphen is shorter than a minus sign.
_SIGNS = {"-": "\u2212"}


def mathml(source: str) -> Markup:
    r"""Return a formula as a `<math>` element.

    Words and letters are names, quoted text is prose, `~` is a thin space. `_` and `^` start an index or a power:
    a symbol or a group in braces. The commands are `\frac{}{}`, `\sqrt{}`, `\bar{}` and `\sum`.

    Examples:
        >>> print(mathml(r"\frac{1}{n} x_i^2"))
        <math display="block"><mfrac><mrow><mn>1</mn></mrow><mrow><mi>n</mi></mrow></mfrac><msubsup>...</msubsup></math>
    """
    parts, rest = _sequence(source)
    if rest.strip():
        raise ValueError(f"The formula {source!r} has a brace too many before {rest!r}.")
    return Markup('<math display="block">{}</math>').format(parts)


def _element(tag: str, *parts: Markup | str) -> Markup:
    # Tags are constants of this module, and format escapes the parts that are no markup.
    return Markup(f"<{tag}>{'{}' * len(parts)}</{tag}>").format(*parts)  # noqa: S704


def _sequence(source: str) -> tuple[Markup, str]:
    """Return the elements up to the end or a closing brace, and the rest of the source with that brace."""
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
        # The index of a sum is below its sign.
        return _element("munder", base, scripts["_"]), source
    tag = {"_": "msub", "^": "msup", "_^": "msubsup"}["".join(sorted(scripts, reverse=True))]
    return _element(tag, base, *(scripts[mark] for mark in "_^" if mark in scripts)), source


def _atom(source: str) -> tuple[Markup, str]:
    match = _TOKEN.match(source)
    if match is None:
        raise ValueError("A formula ends where an index or an argument was expected.")
    rest = source[match.end() :]
    if match[0].strip() in _CONSTANTS:
        return _CONSTANTS[match[0].strip()], rest
    if match["command"]:
        if match["command"] not in _COMMANDS:
            raise ValueError(f"A formula has the unknown command {match['command']}.")
        tag, count = _COMMANDS[match["command"]]
        parts: list[Markup] = []
        for _ in range(count):
            part, rest = _atom(rest)
            parts.append(part)
        return _element(tag, *parts, *([Markup("<mo>¯</mo>")] if tag == "mover" else [])), rest
    if match["text"] is not None:
        return _element("mtext", f"\N{NO-BREAK SPACE}{match['text']}\N{NO-BREAK SPACE}"), rest
    if match["number"]:
        return _element("mn", match["number"]), rest
    if match["word"]:
        return _element("mi", match["word"]), rest
    if match["sign"] == "{":
        inside, rest = _sequence(rest)
        if not rest.lstrip().startswith("}"):
            raise ValueError("A formula has an open brace.")
        return _element("mrow", inside), rest.lstrip()[1:]
    return _element("mo", _SIGNS.get(match["sign"], match["sign"])), rest
