"""From a trace to a verdict: pure functions over ``model`` values.

Belongs here: layout inference, iterations and phases, critical path, slow and hang rules, evidence joined.
Does not belong here: reading inputs, clocks (``now`` comes in as a value), drawing (``reports`` does that).
``diagnosing.diagnose`` is the entry point.
"""
