"""The facts of a finding as short phrases: who, where, when, at what cost, who waited.

Shared by the reports for people (terminal, and pictures later), so that they say the same words. Works from
the structure of a `Finding`, never from its sentences, so it speaks every language of ``texts``.

Does not lay out or wrap anything, and leaves strings from outside safe (``wording.plain``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatrace.model.finding import Diagnosis, Endpoint, Finding, Severity, Status, Verdict, Where, Window
from megatrace.model.layout import ParallelLayout
from megatrace.model.schedule import Phase
from megatrace.model.trace import RankPlace
from megatrace.reports.texts import Texts
from megatrace.reports.wording import plain, seconds_after, spoken, wall_time
from megatrace.units import NS_PER_S, format_count, format_duration, format_number, say_ranks

MAX_RANKS_SPELT = 60
"""Cells that a list of ranks may take before it is only counted: nobody reads more than a line of ranges."""

MAX_RANKS_PLACED = 4
"""Culprits shown with their node and place, one a line; a larger set is a group and is shown as ranges."""

MAX_VICTIMS_SPELT = 64
"""Victims shown by name: in a larger job what matters is how many wait, the JSON report has all of them."""

MAX_SECONDS_WITH_TENTHS = 1000.0
"""Seconds after t0 are shown with a tenth up to here; in longer recordings the tenth says nothing."""

MAX_SPOKEN_IN_SECONDS = 119.5
"""From here on a duration is said in minutes (``units.format_duration``)."""

MAX_SECONDS = 1e8
"""Three years. More seconds after t0 mean that nobody set t0; then only the wall time can be read."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What every description needs: words, layout, who sits where, and the time now if it was given (ns)."""

    texts: Texts
    total_ranks: int
    t0: int
    layout: ParallelLayout | None = None
    places: dict[int, RankPlace] | None = None
    now: int | None = None

    @staticmethod
    def of(diagnosis: Diagnosis, texts: Texts, now: int | None = None) -> Scene:
        """The scene of a diagnosis."""
        return Scene(
            texts=texts,
            total_ranks=diagnosis.job.ranks,
            t0=diagnosis.clock.t0,
            layout=diagnosis.job.layout,
            places={place.rank: place for place in diagnosis.places},
            now=now,
        )


def spelt(scene: Scene, ranks: Sequence[int]) -> str:
    """A rank set as ranges where that is short, else counted: "ranks 0, 1, 4–7", "3,479 of 3,480 ranks"."""
    text = say_ranks(ranks)
    if len(ranks) > 1 and len(text) > MAX_RANKS_SPELT:
        return counted(scene, ranks)
    listed = text.partition(" ")[2]
    key = "rank" if len(ranks) == 1 else "ranks"
    return scene.texts.say(key, rank=listed, ranks=listed)


def counted(scene: Scene, ranks: Sequence[int]) -> str:
    """Only how many, out of how many."""
    return scene.texts.say("count_of", count=format_count(len(ranks)), total=format_count(scene.total_ranks))


def place_parts(scene: Scene, rank: int) -> list[str]:
    """A rank and what is known of its place: ["rank 1505", "node188", "gpu1", "stage 2", "TP 1", "DP 14"]."""
    parts = [scene.texts.say("rank", rank=rank)]
    place = (scene.places or {}).get(rank)
    if place is not None:
        parts += [plain(item) for item in (place.node, place.device) if item]
    layout = scene.layout
    if layout is not None and 0 <= rank < layout.world_size:
        at = layout.place(rank)
        if layout.pp > 1:
            parts.append(scene.texts.say("stage", stage=at.stage))
        axes = (("TP", at.tp, layout.tp), ("CP", at.cp, layout.cp), ("DP", at.dp, layout.dp))
        parts += [f"{name} {index}" for name, index, size in axes if size > 1]
    return parts


def endpoint(scene: Scene, end: Endpoint) -> str:
    """One end of a link: "rank 12 (node1 gpu4)", "node5 mlx5_3 port 1"."""
    port = None if end.port is None else scene.texts.say("port", port=end.port)
    parts = [plain(item) for item in (end.node, end.device, port) if item]
    where = " ".join(parts)
    if end.rank is None:
        return where or "?"
    rank = scene.texts.say("rank", rank=end.rank)
    return f"{rank} ({where})" if where else rank


def culprit_lines(scene: Scene, finding: Finding) -> list[str]:
    """Who did it, one a line; one line that says so where it is nobody in particular."""
    who = finding.culprits
    lines: list[str] = []
    if len(who.ranks) <= MAX_RANKS_PLACED:
        lines += [" · ".join(place_parts(scene, rank)) for rank in sorted(who.ranks)]
    else:
        text, count = spelt(scene, who.ranks), format_count(len(who.ranks))
        listed = say_ranks(who.ranks).partition(" ")[2]
        short = len(listed) <= MAX_RANKS_SPELT
        lines.append(scene.texts.say("ranks_counted", ranks=listed, count=count) if short else text)
        if len(who.nodes) == 1:
            lines = [f"{lines[0]} · {plain(who.nodes[0])}"]
    shown = " · ".join(lines)
    lines += [plain(node) for node in who.nodes if plain(node) not in shown]
    for device in who.devices:
        text = " · ".join(plain(part) for part in (device.node, device.device) if part)
        if text and text not in shown:
            lines.append(text)
    lines += [
        scene.texts.say("link", src=endpoint(scene, link.src), dst=endpoint(scene, link.dst))
        for link in who.links
    ]
    return lines or [f"{scene.texts.say('nobody')} · {scene.texts.kind(finding.kind)}"]


def notes(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """The findings that nobody is woken up for, without the one that the first sentence says already."""
    minor = (item for item in diagnosis.findings if item.severity > Severity.P2)
    return tuple(item for item in minor if item.summary.rstrip(".") not in diagnosis.headline)


def is_nobody(finding: Finding) -> bool:
    """Whether no rank, node, device or link is named."""
    who = finding.culprits
    return not (who.ranks or who.nodes or who.devices or who.links)


def confidence(scene: Scene, finding: Finding) -> str:
    """ "confidence 0.97"; never rounded up to certainty."""
    value = finding.confidence
    if not math.isfinite(value):
        return scene.texts.say("confidence", value="?")
    shown = value if value >= 1 else math.floor(value * 100) / 100
    return scene.texts.say("confidence", value=f"{shown:.2f}")


def moment(scene: Scene, time: int) -> str:
    """A time: "02:13:41.207 UTC (t = 41.2 s)"."""
    t = scene.texts.say("t_from", start=_t(scene, time))
    clock = wall_time(time, date=True)
    if clock is None:
        return t
    return f"{clock} UTC ({t})" if _near(scene, time) else f"{clock} UTC"


def _near(scene: Scene, time: int) -> bool:
    return abs(time - scene.t0) < MAX_SECONDS * NS_PER_S


def _t(scene: Scene, time: int | None) -> str:
    seconds = seconds_after(time, scene.t0)
    if seconds is None:
        return "?"
    return f"{seconds:.1f}" if abs(seconds) < MAX_SECONDS_WITH_TENTHS else f"{seconds:,.0f}"


def when(scene: Scene, finding: Finding) -> str:
    """The window: iterations, seconds, wall time, and whether it lasts; "" where not known."""
    window = finding.window
    if window is None:
        return ""
    if finding.kind.verdict is Verdict.HANG and window.end is None:
        text = scene.texts.say("since", time=moment(scene, window.start))
        if scene.now is not None and scene.now > window.start:
            ago = scene.texts.say("ago", duration=format_duration(scene.now - window.start))
            text += f", {ago}"
        return text
    if finding.kind.verdict is Verdict.FAILED and window.end is None:
        clock = wall_time(window.start, date=True)
        return scene.texts.say("first_seen", time=f"{clock} UTC" if clock else moment(scene, window.start))
    parts = [iterations(scene, window), _span(scene, window)]
    # Of what failed nobody asks whether it goes on; of a hang "since" says it.
    if finding.kind.verdict is Verdict.SLOW or finding.status is not Status.ONGOING:
        parts.append(scene.texts.status(finding.status))
    return " · ".join(part for part in parts if part)


def iterations(scene: Scene, window: Window) -> str:
    """ "iterations 21–31", "from iteration 21 on", or ""."""
    first, last = window.first_iteration, window.last_iteration
    if first is None:
        return ""
    if last is None:
        return scene.texts.say("from_iteration", first=first)
    return scene.texts.say("iteration" if first == last else "iterations", first=first, last=last)


def _span(scene: Scene, window: Window) -> str:
    if window.end is None:
        return scene.texts.say("since_when", time=moment(scene, window.start))
    if (window.end - window.start) * 10 < NS_PER_S:
        return moment(scene, window.start)
    t = scene.texts.say("t_range", start=_t(scene, window.start), end=_t(scene, window.end))
    start, end = wall_time(window.start, date=True), wall_time(window.end, date=True)
    if not start or not end:
        return t
    start, end = start.rpartition(".")[0], end.rpartition(".")[0]
    same_day = start[:10] == end[:10]
    clock = f"{start}–{end[11:] if same_day else end} UTC"
    return f"{t} ({clock})" if _near(scene, window.start) else clock


def where(scene: Scene, finding: Finding) -> str:
    """The place in the iteration: "stage 2 · forward of micro-batch 2 · iteration 6 · RECV from rank 809".

    "" where it would only repeat what the lines of the culprit and the window show already.
    """
    at = finding.where
    say = scene.texts.say
    parts: list[str] = []
    if finding.culprits.ranks and scene.layout is not None and _only_stage(finding):
        return ""
    if at.stage is not None and (scene.layout is None or scene.layout.pp > 1):
        parts.append(say("stage", stage=at.stage))
    # What follows the last gradient synchronisation is counted to the next iteration (as in the sentences).
    after = at.phase is Phase.OTHER and bool(at.iteration)
    if after:
        parts.append(say("after_iteration", last=(at.iteration or 0) - 1))
    elif at.phase is not None and at.micro_batch is not None:
        parts.append(say("phase_of", phase=scene.texts.phase(at.phase), mb=at.micro_batch))
    elif at.phase is not None:
        parts.append(scene.texts.phase(at.phase))
    elif at.micro_batch is not None:
        parts.append(say("micro_batch", mb=at.micro_batch))
    if at.iteration is not None and not after:
        parts.append(say("iteration", first=at.iteration))
    if at.training_step is not None:
        parts.append(say("training_step", step=at.training_step))
    parts += _call(scene, finding)
    return " · ".join(parts)


def _only_stage(finding: Finding) -> bool:
    """Whether nothing but the stage is known, beside the iteration in which the window begins."""
    first = None if finding.window is None else finding.window.first_iteration
    stage = Where(stage=finding.where.stage)
    return finding.where in (stage, replace(stage, iteration=first))


def _call(scene: Scene, finding: Finding) -> list[str]:
    at = finding.where
    parts: list[str] = []
    if at.op is not None:
        op = plain(at.op)
        if at.peer is not None:
            op = op.capitalize()  # as the sentences have it: "Recv from rank 809"
            op = scene.texts.say("to_peer" if op.upper() == "SEND" else "from_peer", op=op, peer=at.peer)
        parts.append(op)
    if at.communicator is not None or at.seq is not None:
        number = "" if at.seq is None else f"#{at.seq:,}"
        parts.append(f"{scene.texts.name(plain(at.communicator or ''))} {number}".strip())
    return parts


def cost(scene: Scene, finding: Finding) -> str:
    """ "iterations take 2.02× as long · 17.1 s of the job's time lost"; "" where not known."""
    impact = finding.impact
    say = scene.texts.say
    parts: list[str] = []
    if _known(impact.slowdown) and impact.slowdown != 1.0:
        parts.append(say("slower", factor=format_number(impact.slowdown or 0.0)))
    if _known(impact.seconds_lost):
        parts.append(say("lost", seconds=_seconds(impact.seconds_lost or 0.0)))
    if _known(impact.gpu_hours_lost):
        parts.append(say("gpu_hours", hours=format_number(impact.gpu_hours_lost or 0.0, 2)))
    if finding.kind.verdict is Verdict.HANG and finding.status is Status.ONGOING and scene.total_ranks:
        parts.append(say("burning", ranks=format_count(scene.total_ranks)))
    return " · ".join(parts)


def _seconds(seconds: float) -> str:
    """Like the sentence, which has tenths ("16.0 s"), where that is how people say such a duration."""
    return f"{seconds:.1f} s" if 1 <= seconds < MAX_SPOKEN_IN_SECONDS else spoken(seconds * NS_PER_S)


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def victims(scene: Scene, finding: Finding) -> str:
    """Who waits or waited; "" for nobody."""
    if not finding.victims:
        return ""
    many = len(finding.victims) > MAX_VICTIMS_SPELT
    who = counted(scene, finding.victims) if many else spelt(scene, finding.victims)
    return scene.texts.say("waiting" if finding.kind.verdict is Verdict.HANG else "waited", who=who)
