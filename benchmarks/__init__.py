"""What `make bench-speed` and its kin run. Nothing here is installed; results stand in
`results/NAME.json`."""

from __future__ import annotations
