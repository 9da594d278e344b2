"""The robot that looks after machines: probes and health checks, and what is done about what they find.

Belongs here: the catalogue of checks (``checks``), how they are run without harm (``check_runner``), the
machine they look at (``live_system``, ``recorded_system``), what they remember (``counters``). Does not
belong here: parsing what tools print (``readers``), rules that an analysis of logs shares (``analysis``),
laying out reports (``reports``). What a node's agent imports from here brings no numpy and no third party.
"""
