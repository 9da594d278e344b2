"""What every HTML page of ours is made with: its template environment, its assets, and its security policy.

A page is one file: style, script and data are in it, and nothing is loaded. Its Content-Security-Policy
allows the one script and the one style sheet that it has (by hash) and nothing else.

Knows no page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined


def policy(script: str, style: str) -> str:
    """The Content-Security-Policy of a page with this script and this style."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


@lru_cache(maxsize=64)
def asset(name: str) -> str:
    """A file of ``html_assets``."""
    return (files("megatrace.reports") / "html_assets" / name).read_text("utf-8")


def script_of(names: Sequence[str]) -> str:
    """These scripts as one, in this order: each uses what stands before it."""
    parts = "\n".join(asset(name) for name in names)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Templates from ``html_assets``; everything that is filled in is escaped, nothing may be missing."""
    return Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
