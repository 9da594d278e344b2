"""`python -m megatrace`: the same as the command `megatrace`, where the scripts folder is not on the PATH."""

from __future__ import annotations

import sys

from megatrace.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
