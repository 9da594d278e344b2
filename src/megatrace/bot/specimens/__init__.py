"""Recorded machines that nobody has to own: healthy and sick ones of the usual types, made from public facts.

For practising, for tests, and for measuring what the checks find: `machine` gives a healthy one, `faults`
break it in one known way, `variants` make it look different while it stays healthy. Each value that a check
looks at has its source beside it.

Belongs here: what a machine of a type shows. Does not: judging it.
"""
