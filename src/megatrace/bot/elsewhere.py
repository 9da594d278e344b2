"""A problem of another machine than the one that was asked: a scheduler tells of its nodes."""

from __future__ import annotations

from dataclasses import replace

from megatrace.bot.look import Problem
from megatrace.model.finding import Culprits, Device


def of_node(problem: Problem, node: str) -> Problem:
    """The same problem, of the named node."""
    finding = problem.finding
    who = Culprits(nodes=(node,), devices=(Device(node, None),))
    fingerprint = f"{finding.fingerprint.split(':', 1)[0]}:{node}"
    return replace(problem, finding=replace(finding, culprits=who, fingerprint=fingerprint))
