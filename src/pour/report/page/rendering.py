"""From a template to one HTML file that may load nothing and run nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pour.metrics.catalogue import find_metric, title_of
from pour.report.page.cells import VERDICTS, duration, number
from pour.report.page.mathml import mathml

__all__ = ["render"]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pour.report.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {
        "number": number,
        "duration": duration,
        "title_of": title_of,
        "metric_name": _metric_name,
        "mathml": mathml,
    }
    environment.globals["VERDICTS"] = VERDICTS
    return environment


def render(template: str, *, scripts: tuple[str, ...], form: Literal["none", "self"] = "none", **context: Any) -> str:
    """Fill a template; everything in ``context`` is escaped.

    The page's own policy names the digests of its style and scripts: whatever else finds its way in does not run,
    and no address is ever loaded.

    Args:
        template: name under ``templates/``.
        scripts: names of the scripts, in order, after the one that sets the colours.
        form: where a form may lead.
        context: what the template shows.
    """
    environment = _environment()
    texts = {name: _source(name) for name in ("page.css", "theme.js", *scripts)}
    digests = [_digest(texts[name]) for name in ("theme.js", *scripts)]
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src {_digest(texts['page.css'])}",
            f"script-src {' '.join(digests)}",
            f"form-action '{form}'",
            "base-uri 'none'",
        ]
    )
    # These texts are part of the package, and every value in the template is escaped.
    marked = {name: Markup(text) for name, text in texts.items()}  # noqa: S704
    return environment.get_template(template).render(
        policy=policy,
        style=marked["page.css"],
        theme=marked["theme.js"],
        scripts=[marked[name] for name in scripts],
        **context,
    )


def _metric_name(name: str) -> str | None:
    """Return the catalogue's name of a measured value, without prefix and suffix, or None for an unknown metric."""
    match = find_metric(name)
    return None if match is None else match[0].name


def _source(name: str) -> str:
    loader = _environment().loader
    if loader is None:
        raise RuntimeError("The templates have no loader.")
    return loader.get_source(_environment(), name)[0]


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
