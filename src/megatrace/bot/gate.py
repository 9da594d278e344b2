"""Whether a job may start on this node: the fast checks, and a budget that somebody else keeps.

A gate that fails takes a node out of service past every guard: Slurm drains and requeues by itself when a
prolog ends with another code than 0. So it closes only on a definite FAIL of the fast ★ checks, and only with
a token of the controller, which counts how many nodes are out already. Whatever is not certain (a check that
could not look, no controller, no budget left) lets the job pass and is told as a finding: a gate that errs
towards closed can empty a cluster.

Bounded: `LOOK_S` for all checks together, `TOKEN_S` for the token."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import urlsplit

from megatrace.bot.catalogue import CheckInfo, select
from megatrace.errors import UsageError
from megatrace.model.check import CheckResult, Inspection, Outcome
from megatrace.model.finding import Finding, Severity

FAST = ("GPU-01", "GPU-02", "GPU-03", "GPU-04", "NVL-01", "NVL-04", "IB-01", "FS-01", "CTR-01")
"""What decides whether a job can start at all, and can be asked in seconds."""
LOOK_S = 8.5
"""Of the 10 s that a prolog may cost; one is for the token, a half for the start of this program."""
TOKEN_S = 1.0
LEAST_S = 0.2
"""A check that has less left is not begun."""
PATH = "/v1/gate/tokens"
MAX_ANSWER = 4096


class Decision(Enum):
    """Why the gate is open or closed."""

    WELL = "nothing wrong"
    CLOSED = "closed"
    NOT_SURE = "open: no definite fault"
    NO_CONTROLLER = "open although a fault was found: no controller answered"
    NO_BUDGET = "open although a fault was found: the controller gave no token"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reasons`` are the faults of which any closes the gate; ``said`` what the controller answered."""

    decision: Decision
    reasons: tuple[Finding, ...] = ()
    said: str = ""

    @property
    def closed(self) -> bool:
        """Whether the job may not start here."""
        return self.decision is Decision.CLOSED


def fast(catalogue: Iterable[CheckInfo]) -> tuple[CheckInfo, ...]:
    """The checks of the gate, in the order in which they are asked."""
    found = {item.id: item for item in select(catalogue, names=FAST)}
    return tuple(found[name] for name in FAST if name in found)


def within(checks: Iterable[CheckInfo], seconds: float, grace_s: float) -> Iterator[CheckInfo]:
    """The checks one by one, each with at most what is left of the time; ends when none is.

    The runner takes the next one when it is through with the last, so time that one saves is the next
    one's."""
    until = time.monotonic() + seconds
    for item in checks:
        left = until - time.monotonic() - grace_s
        if left < LEAST_S:
            return
        yield replace(item, timeout_s=min(item.timeout_s, left))


def completed(inspection: Inspection, asked: Iterable[CheckInfo]) -> Inspection:
    """With an UNKNOWN for every check that there was no time for."""
    done = {result.check for result in inspection.results}
    late = [
        CheckResult(item.id, Outcome.UNKNOWN, "there was no time left")
        for item in asked
        if item.id not in done
    ]
    return replace(inspection, results=(*inspection.results, *late))


def definite(inspection: Inspection) -> tuple[Finding, ...]:
    """Findings that may close the gate: a FAIL of P0 or P1 that is neither merely watched nor a
    consequence."""
    return tuple(
        finding
        for result, finding, _ in inspection.troubles
        if result.outcome is Outcome.FAIL
        and not result.observed
        and finding.severity <= Severity.P1
        and not finding.caused_by
        and not finding.ambiguous
    )


def decide(inspection: Inspection, controller: str | None, job: str = "") -> Verdict:
    """Asks the controller only where there is a reason to close."""
    reasons = definite(inspection)
    if not reasons:
        unsure = inspection.troubles or inspection.of(Outcome.UNKNOWN)
        return Verdict(Decision.NOT_SURE if unsure else Decision.WELL)
    if controller is None:
        return Verdict(Decision.NO_CONTROLLER, reasons, "none is named (--controller URL)")
    granted, said = token(controller, inspection.node, job, reasons)
    if granted is None:
        return Verdict(Decision.NO_CONTROLLER, reasons, said)
    return Verdict(Decision.CLOSED if granted else Decision.NO_BUDGET, reasons, said)


def token(controller: str, node: str, job: str, reasons: Iterable[Finding]) -> tuple[bool | None, str]:
    """Whether this node may be taken out: True, False, None without an answer in `TOKEN_S`; and the words.

    Raises UsageError for an address that is none."""
    parts = urlsplit(controller)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--controller {controller!r} is no address: write http://HOST:PORT")
    said = [{"fingerprint": item.fingerprint, "summary": item.summary} for item in reasons]
    body = json.dumps({"node": node, "job": job, "reasons": said}).encode()
    answer: list[tuple[bool | None, str]] = []
    # A name that does not resolve and a server that drips bytes both outlive a socket's own limit.
    asking = threading.Thread(
        target=lambda: answer.append(_ask(f"{controller.rstrip('/')}{PATH}", body)), daemon=True
    )
    asking.start()
    asking.join(TOKEN_S)
    return answer[0] if answer else (None, f"no answer within {TOKEN_S:g} s")


def _ask(url: str, body: bytes) -> tuple[bool | None, str]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TOKEN_S) as reply:
            found = json.loads(reply.read(MAX_ANSWER))
    except (OSError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}"[:200]
    if not isinstance(found, Mapping) or not isinstance(found.get("granted"), bool):
        return None, "the answer says nothing of a token"
    return found["granted"], str(found.get("reason", ""))[:200]


def told(verdict: Verdict, inspection: Inspection) -> str:
    """One line for a scheduler's log."""
    words = [f"megatrace gate: {inspection.node} {verdict.decision.value}"]
    words += [item.summary for item in verdict.reasons[:3]]
    unknown = [f"{item.check} {item.reason}" for item in inspection.of(Outcome.UNKNOWN)]
    words += [f"could not look: {', '.join(unknown[:3])}"] if unknown else []
    words += [f"controller: {verdict.said}"] if verdict.said else []
    return "; ".join(words)
