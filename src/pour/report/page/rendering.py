"""Fill a template: one HTML file that loads nothing and runs only its own scripts."""

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
    environment.filters |= {"number": number, "duration": duration, "title_of": title_of, "mathml": mathml}
    environment.filters |= {"metric_name": _metric_name, "on_training_images": _on_training_images}
    environment.globals["VERDICTS"] = VERDICTS
    return environment


def render(template: str, *, scripts: tuple[str, ...], form: Literal["none", "self"] = "none", **context: Any) -> str:
    """Fill a template. Everything in ``context`` is escaped.

    The page's content security policy contains the digests of its style and scripts. Nothing else runs, and no address
    is loaded.

    Args:
        template: Name of a file in ``templates/``.
        scripts: Names of the scripts after ``theme.js``, in order.
        form: Target of forms.
        context: Values of the template.
    """
    names = ("page.css", "theme.js", *scripts)
    # These texts are part of the package, and the template escapes every value.
    texts = [Markup(_LOADER.get_source(_environment(), name)[0]) for name in names]  # noqa: S704
    style_digest, *script_digests = map(_digest, texts)
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src {style_digest}",
            f"script-src {' '.join(script_digests)}",
            f"form-action '{form}'",
            "base-uri 'none'",
        ]
    )
    style, theme, *others = texts
    page = _environment().get_template(template)
    return page.render(policy=policy, style=style, theme=theme, scripts=others, **context)


def _metric_name(name: str) -> str | None:
    """Return the catalogue's name of a measured value, without prefix and suffix, or None for an unknown metric."""
    match = find_metric(name)
    return None if match is None else match[0].name


def _on_training_images(name: str) -> bool:
    """Return whether a value is measured on training images. The suffix of the IoU of a class is the class."""
    match = find_metric(name)
    if match is None:
        return name.endswith("_train")
    return match[0].training or (match[1] == "_train" and not match[0].name.startswith("class_iou"))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
