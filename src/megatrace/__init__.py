"""MegaTrace: which GPU of a training job hangs or is slow, since when, at what cost, and why.

Everything observed becomes a `Trace` or a reading of a `System`, everything judged becomes `Finding`s. This
module holds only the version, so that `import megatrace` costs nothing inside a training process; what there
is lies in the packages below it (see ARCHITECTURE.md for the layers).
"""

from __future__ import annotations

__version__ = "0.1.0"
