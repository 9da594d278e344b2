"""The fault matrix: simulated jobs with a known fault, diagnosed and scored by a rule that was fixed before.

``layouts`` are the jobs, ``drawing`` says which fault strikes where (from a seed), ``cases`` puts both
together, ``scoring`` is the rule, ``tables`` adds up, ``__main__`` runs it (``make bench-accuracy``). The
tests score other seeds with the same code.
"""

from __future__ import annotations
