"""Tools of the house: what `make lint` and `make docs` run. Nothing here is installed."""

from __future__ import annotations
