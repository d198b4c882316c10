"""HTML and SVG elements. Whatever is no `Markup` is escaped: a program may call a scope `<script>`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from lab.core.known import known


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """`class_` stands for class and `text_anchor` for text-anchor; attributes that are None are left out."""
    told = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{told}>{joined(children)}</{tag}>")


def joined(parts: Iterable[Any]) -> Markup:
    return Markup("").join(parts)


def paragraphs(lines: Iterable[str]) -> Markup:
    return joined(element("p", line) for line in lines)


def words(items: Iterable[Any]) -> Markup:
    """A list."""
    return element("ul", *(element("li", item) for item in items))


def rendered(template: str, **values: Any) -> Markup:
    return Markup(_environment().get_template(template).render(**values))


def source(name: str) -> str:
    """A stylesheet or script of this package, as it stands."""
    environment = _environment()
    return known(environment.loader).get_source(environment, name)[0]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("lab.report.html", "static"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else escape(value)
