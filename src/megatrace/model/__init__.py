"""The types every other layer speaks: what a job is, what was observed, what was judged.

Belongs here: frozen values (job, layout, schedule, events, trace, frontier, graph, finding) and the pure
arithmetic on them. Does not belong here: reading or writing anything, clocks, third parties other than numpy.
"""
