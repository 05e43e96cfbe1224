"""Fill a template: one HTML file that loads nothing and runs only its own scripts."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pour.metrics.catalogue import find_metric, title_of
from pour.report.page.cells import VERDICTS, count_verdicts, duration, number, strip_of
from pour.report.page.facts import access_of, forgotten_words, versions
from pour.report.page.mathml import mathml

__all__ = ["render"]

_LOADER = PackageLoader("pour.report.page", "templates")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=_LOADER,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    filters = (
        access_of, count_verdicts, duration, find_metric, forgotten_words, formula, number, strip_of, title_of,
        versions,
    )  # fmt: skip
    environment.filters |= {function.__name__: function for function in filters}
    environment.globals["VERDICTS"] = VERDICTS
    return environment


def render(template: str, *, scripts: tuple[str, ...], form: Literal["none", "self"] = "none", **context: Any) -> str:
    """Fill a template. Everything in `context` is escaped.

    The page's content security policy contains the digests of its style and scripts. Nothing else runs, and no address
    is loaded.

    Args:
        template: Name of a file in `templates/`.
        scripts: Names of the scripts after `theme.js`, in order.
        form: Target of forms.
        context: Values of the template.
    """
    names = ("page.css", "theme.js", *scripts)
    # These texts are part of the package, and the template escapes every value.
    texts = [Markup(_LOADER.get_source(_environment(), name)[0]) for name in names]  # noqa: S704
    style_digest, *script_digests = map(_digest, texts)
    policy = (
        f"default-src 'none'; img-src data:; style-src {style_digest}; script-src {' '.join(script_digests)}; "
        f"form-action '{form}'; base-uri 'none'"
    )
    style, theme, *others = texts
    page = _environment().get_template(template)
    return page.render(policy=policy, style=style, theme=theme, scripts=others, **context)


def formula(source: str) -> str:
    """Return a formula as MathML, or as text if pour cannot read the formula of another package's metric."""
    try:
        return mathml(source)
    except ValueError:
        return source


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
