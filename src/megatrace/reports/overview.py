"""What was looked at: the job, its inputs, and what the recordings lack, as short lines.

A verdict is worth what it was worked out from, so every report ends with this. Gaps of many ranks over the
same seconds become one line.

Does not decide whether a gap matters: the analysis does, and says so in its notes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from megatrace.model.finding import Diagnosis, Verdict
from megatrace.model.trace import Gap, InputInfo, Observable
from megatrace.reports.describe import Scene, spelt
from megatrace.reports.texts import Texts
from megatrace.reports.wording import plain, seconds_after, spoken
from megatrace.units import NS_PER_MS, format_count, format_number

MAX_GAPS = 4
MAX_NOTES = 4
MAX_INPUTS = 2
"""Lines of each kind shown without --verbose."""
MAX_UNALIGNED = 5


def healthy_facts(diagnosis: Diagnosis, texts: Texts, sentence: str) -> list[str]:
    """Ranks, iterations, median iteration, worst stage imbalance; without what the sentence says already.

    A sentence that has the word ("median") has the number as well.
    """
    job = diagnosis.job
    say = texts.say
    seen, total = format_count(job.ranks_seen), format_count(job.ranks)
    facts: list[tuple[str, str]] = []
    if job.ranks:
        facts = [
            ("rank", say("count_ranks", count=seen) if seen == total else say("seen", seen=seen, total=total))
        ]
    if job.iterations is not None:
        key = "iterations_seen"
        facts.append((say(key, count="0").split()[-1], say(key, count=format_count(job.iterations))))
    if _known(job.iteration_median_ms):
        facts.append((say("median", time="").strip(), say("median", time=_ms(job.iteration_median_ms))))
    worst = _imbalance(diagnosis)
    if worst is not None:
        percent, stage = worst
        facts.append(("stage", say("imbalance", percent=format_number(percent, 2), stage=stage)))
    return [fact for word, fact in facts if word not in sentence]


def _imbalance(diagnosis: Diagnosis) -> tuple[float, int] | None:
    """How much longer than the median stage the busiest stage works, in percent, and which it is."""
    work = [(item.work_ms, item.stage) for item in diagnosis.stages if _known(item.work_ms)]
    values = [value for value, _ in work if value is not None]
    if len(values) < 2 or statistics.median(values) <= 0:
        return None
    busiest, stage = max((value, -stage) for value, stage in work if value is not None)
    return (busiest / statistics.median(values) - 1) * 100, -stage


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _ms(value: float | None) -> str:
    return "?" if value is None else spoken(value * NS_PER_MS)


def has_holes(diagnosis: Diagnosis) -> bool:
    """Whether the coverage has anything that a reader of a good verdict should know."""
    c = diagnosis.coverage
    return bool(
        c.ranks_missing or c.gaps or c.bad_lines or c.torn_tails or c.notes or diagnosis.clock.unaligned_nodes
    )


def coverage_items(diagnosis: Diagnosis, scene: Scene, verbose: bool) -> list[str]:
    """Lines about what was seen and what is missing."""
    say = scene.texts.say
    coverage, job, clock = diagnosis.coverage, diagnosis.job, diagnosis.clock
    first = []
    if job.ranks:
        first = [say("seen", seen=format_count(job.ranks_seen), total=format_count(job.ranks))]
    if coverage.lines:
        first.append(say("lines", count=format_count(coverage.lines)))
    if coverage.bad_lines:
        first.append(say("bad_lines", count=format_count(coverage.bad_lines)))
    if job.ranks and not coverage.gaps and not coverage.ranks_missing:
        first.append(say("no_gaps"))
    if coverage.spans_cut:
        first.append(say("spans_cut", count=format_count(coverage.spans_cut)))
    if _known(clock.error_us) and clock.error_us is not None:
        first.append(say("clocks", error=format_number(clock.error_us)))
    items = [" · ".join(first)] if first else []
    # "Cannot tell" has said above what is missing, as the first thing to be mended.
    if coverage.ranks_missing and diagnosis.verdict is not Verdict.UNDECIDABLE:
        items.append(f"{scene.texts.label('missing')}: {spelt(scene, coverage.ranks_missing)}")
    items += _limited(_gap_lines(coverage.gaps, scene), MAX_GAPS, scene.texts, verbose)
    if coverage.torn_tails:
        items.append(say("torn", who=spelt(scene, coverage.torn_tails)))
    if clock.unaligned_nodes:
        nodes = [plain(node) for node in clock.unaligned_nodes]
        shown = nodes if verbose else nodes[:MAX_UNALIGNED]
        more = f" (+{len(nodes) - len(shown)})" if len(nodes) > len(shown) else ""
        items.append(say("unaligned", nodes=", ".join(shown) + more))
    notes = [scene.texts.sentence(plain(note)) for note in coverage.notes]
    return items + _limited(notes, MAX_NOTES, scene.texts, verbose)


def _gap_lines(gaps: Sequence[Gap], scene: Scene) -> list[str]:
    """One line for all ranks that lost the same stretch (to a tenth of a second)."""
    together: dict[tuple[str, str], list[Gap]] = {}
    for gap in gaps:
        ends = (seconds_after(gap.start, scene.t0), seconds_after(gap.end, scene.t0))
        key = ("?" if ends[0] is None else f"{ends[0]:.1f}", "?" if ends[1] is None else f"{ends[1]:.1f}")
        together.setdefault(key, []).append(gap)
    lines: list[str] = []
    for (start, end), members in together.items():
        who = spelt(scene, sorted({gap.rank for gap in members}))
        line = scene.texts.say("gap", who=who, start=start, end=end)
        lost = [gap.records_lost for gap in members if gap.records_lost is not None]
        if lost and len(lost) == len(members):
            line += scene.texts.say("listing") + scene.texts.say("records", count=format_count(sum(lost)))
        lines.append(line)
    return lines


def _limited(lines: list[str], limit: int, texts: Texts, verbose: bool) -> list[str]:
    if verbose or len(lines) <= limit + 1:
        return lines
    return [*lines[:limit], texts.say("more", count=len(lines) - limit)]


def job_items(diagnosis: Diagnosis, texts: Texts) -> list[str]:
    """Two lines: size, layout and its source, schedule; iterations and what they were compared with."""
    job = diagnosis.job
    if not job.ranks:
        return []  # logs and outputs of tools do not say how large the job is
    shape = [texts.say("count_ranks", count=format_count(job.ranks))]
    if job.nodes:
        shape.append(texts.say("nodes", count=format_count(job.nodes)))
    layout = job.layout
    if layout is None:
        shape.append(texts.say("no_layout"))
    else:
        axes = [("TP", layout.tp), ("PP", layout.pp), ("DP", layout.dp), ("CP", layout.cp), ("EP", layout.ep)]
        sizes = [f"{name} {size}" for name, size in axes if size > 1 or name in ("TP", "PP", "DP")]
        if layout.vpp > 1:
            sizes.append(f"VPP {layout.vpp}")
        source = texts.say("config" if job.layout_source == "config" else "inferred")
        shape.append(f"{' '.join(sizes)} ({source})" if job.layout_source else " ".join(sizes))
    if job.schedule is not None:
        shape.append(
            job.schedule.kind.value.upper() if job.schedule.kind.value == "1f1b" else job.schedule.kind.value
        )
    if job.micro_batches is not None:
        shape.append(texts.say("micro_batches", count=format_count(job.micro_batches)))
    lines = [" · ".join(shape)]
    times: list[str] = []
    if job.iterations is not None:
        seen = texts.say("iterations_seen", count=format_count(job.iterations))
        relative = job.iteration_numbering != "absolute"
        times.append(seen + texts.say("comma") + texts.say("numbered") if relative else seen)
    if _known(job.iteration_median_ms):
        times.append(texts.say("median", time=_ms(job.iteration_median_ms)))
    if _known(job.iteration_p95_ms):
        times.append(texts.say("p95", time=_ms(job.iteration_p95_ms)))
    if job.baseline:
        times.append(texts.say("against", baseline=texts.sentence(plain(job.baseline))))
    return [*lines, " · ".join(times)] if times else lines


def input_items(diagnosis: Diagnosis, texts: Texts, verbose: bool) -> list[str]:
    """One line an input (path, format, ranks in it, what it can show); many of one format become one line."""
    inputs = diagnosis.inputs
    if verbose or len(inputs) <= MAX_INPUTS:
        return [_reads(texts, plain(item.path), [item]) for item in inputs]
    by_reader: dict[str, list[InputInfo]] = {}
    for item in inputs:
        by_reader.setdefault(item.reader, []).append(item)
    return [_reads(texts, _paths(texts, items), items) for items in by_reader.values()]


def _paths(texts: Texts, items: Sequence[InputInfo]) -> str:
    if len(items) == 1:
        return plain(items[0].path)
    ends = {"first": plain(items[0].path), "last": plain(items[-1].path)}
    return texts.say("many_inputs", count=format_count(len(items)), **ends)


def _reads(texts: Texts, path: str, items: Sequence[InputInfo]) -> str:
    """Observables are those that every one of the inputs has."""
    common = frozenset[Observable].intersection(*(item.observables for item in items))
    if not common:
        ranks = sum(item.ranks for item in items)
        shown = f", {texts.say('count_ranks', count=format_count(ranks))}" if ranks else ""
        return f"{path} ({plain(items[0].reader)}{shown})"
    return texts.say(
        "reads",
        path=path,
        reader=plain(items[0].reader),
        ranks=texts.say("count_ranks", count=format_count(sum(item.ranks for item in items))),
        observables=", ".join(sorted(observable.value for observable in common)),
    )
