"""What a verdict is still worth where some communication of the job was not recorded.

A rank that waits unseen looks exactly like one that stopped: nothing is open, no further call comes. So a
claim that a rank's host or device stopped holds only as far as recorded communication reaches. Where an
unrecorded edge leads from the accused to other ranks, these are accused with it; where it may lead anywhere,
nobody is. Seconds that a rank spends waiting unseen count as its own work: such findings keep their names,
with less confidence.

Finds no blind spot; that is ``collect.blind_spots``, and ``readers`` where calls are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megatrace.analysis.hang_words import place_in_job
from megatrace.model.blind_spots import BlindSpot, Unobserved, of_features, spot_named
from megatrace.model.finding import Culprits, Diagnosis, Evidence, Finding, Kind, Verdict
from megatrace.model.layout import ParallelLayout
from megatrace.model.trace import Trace
from megatrace.units import format_ranks, say_ranks

HANG_CONFIDENCE = 0.6
"""At most, of a hang that may have its cause out of sight: better than a guess between the seen and the
unseen, for what is seen was checked, and no more than that."""
SLOW_CONFIDENCE = 0.7
"""At most, of slowness: peers of an unseen group would all be slow alike, which a lone slow rank is not."""
_SILENT = "made no further call that is recorded, and may wait"
_WORK = (Kind.SLOW_COMPUTE, Kind.SLOW_HOST, Kind.IMBALANCE)


def unobserved(trace: Trace) -> tuple[Unobserved, ...]:
    """Every blind spot that is known of a job, once."""
    found = list(trace.coverage.unobserved)
    if trace.job.features is not None:
        found += [Unobserved(spot, source) for spot, source in of_features(trace.job.features.value).items()]
    if trace.job.unobserved is not None:
        for word in trace.job.unobserved.value:
            spot = spot_named(word)
            if spot is not None:
                found.append(Unobserved(spot, trace.job.unobserved.source))
    once = {(item.spot, item.members): item for item in reversed(found)}
    return tuple(sorted(once.values(), key=lambda item: (item.spot.value, item.members)))


def with_blind_spots(diagnosis: Diagnosis, trace: Trace) -> Diagnosis:
    """The diagnosis as far as it holds: confidence capped, no rank accused across an unrecorded edge."""
    hidden = unobserved(trace)
    if not hidden:
        return diagnosis
    findings = tuple(_bounded(item, hidden, diagnosis.job.layout) for item in diagnosis.findings)
    headline = diagnosis.headline
    for before, after in zip(diagnosis.findings, findings, strict=True):
        if headline == before.summary:
            headline = after.summary
    notes = tuple(f"Not recorded: {item.spot.says} ({item.source})." for item in hidden)
    coverage = replace(
        diagnosis.coverage,
        notes=tuple(dict.fromkeys((*diagnosis.coverage.notes, *notes))),
        unobserved=hidden,
    )
    return replace(diagnosis, findings=findings, headline=headline, coverage=coverage)


def _bounded(finding: Finding, hidden: Sequence[Unobserved], layout: ParallelLayout | None) -> Finding:
    calls = [item for item in hidden if item.spot.of_calls]
    if any(item.spot is BlindSpot.GPU_RDMA for item in hidden):
        finding = _without_network(finding)
    if not calls:
        return finding
    if finding.kind in _WORK:
        return replace(finding, confidence=min(finding.confidence, SLOW_CONFIDENCE))
    if finding.kind.verdict is not Verdict.HANG:
        return finding
    capped = replace(finding, confidence=min(finding.confidence, HANG_CONFIDENCE))
    return _across(capped, calls, layout) if _stands_still(finding) else capped


def _without_network(finding: Finding) -> Finding:
    """What kernels post passes every queue that was watched, so nothing clears the network."""
    kept = tuple(text for text in finding.exonerated if not text.startswith("not the network"))
    return replace(finding, exonerated=kept)


def _stands_still(finding: Finding) -> bool:
    """Whether the claim is that a rank made no further call; one that went on waits nowhere."""
    if finding.kind in (Kind.HANG_HOST, Kind.HANG_DEVICE):
        return True
    others = finding.kind_alternatives
    return Kind.HANG_HOST in others and Kind.MISMATCH not in others


def _across(finding: Finding, hidden: Sequence[Unobserved], layout: ParallelLayout | None) -> Finding:
    """The same hang with everybody accused whom unrecorded edges join to the accused."""
    accused = set(finding.culprits.ranks)
    reached, crossed = set(accused), []
    anywhere = False
    for item in hidden:
        ends = _reached(item, accused, layout)
        if ends is None:
            anywhere = True
            crossed.append(item.spot)
        elif ends - accused:
            reached |= ends
            crossed.append(item.spot)
    if not crossed or not accused:
        return finding
    what = " and ".join(dict.fromkeys(spot.says for spot in crossed))
    who = say_ranks(sorted(accused))
    if anywhere:
        ranks: tuple[int, ...] = ()
        text = f"the job stands: {who} {_SILENT} for any rank in {what}"
    else:
        ranks = tuple(sorted(reached))
        text = f"the job stands at {say_ranks(ranks)}: {who} {_SILENT} in {what}"
    return replace(
        finding,
        kind=Kind.HANG_GROUP,
        kind_alternatives=(finding.kind, *finding.kind_alternatives),
        summary=text + place_in_job(finding.where),
        ambiguous=True,
        culprits=Culprits(ranks=ranks),
        victims=tuple(rank for rank in finding.victims if rank not in reached),
        evidence=(Evidence(f"without what is not recorded: {finding.summary}"), *finding.evidence),
        fingerprint=f"{Kind.HANG_GROUP.value}:{format_ranks(ranks) or 'any'}",
    )


def _reached(item: Unobserved, accused: set[int], layout: ParallelLayout | None) -> set[int] | None:
    """The accused and whom they may wait for; None where that may be anybody."""
    if item.members:
        return {*item.members, *accused} if accused & set(item.members) else accused
    if not item.spot.axes or layout is None or max(accused, default=0) >= layout.world_size:
        return None
    ends = set(accused)
    for axis in item.spot.axes:
        for rank in accused:
            ends |= set(layout.group(axis, rank))
    return ends
