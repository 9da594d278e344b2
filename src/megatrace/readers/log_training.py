"""Progress lines of training programs: Megatron-LM, DeepSpeed, NeMo, torchtitan, PyTorch examples, timers.

Lines broken by a terminal are one record: a Megatron line goes on until its closing bar. Values in parentheses are
running averages and are kept apart from the current ones. Numbers are taken as printed; seconds and milliseconds
are told by the key.
"""

from __future__ import annotations

import re
from dataclasses import replace

from megatrace.model.series import FactKind, LogFact, Value
from megatrace.readers.log_clean import Line
from megatrace.readers.log_pattern import fact_of, value

_NUMBER = r"[-+]?(?:nan|inf|\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)"
_MEGATRON = re.compile(r"iteration +(?P<iteration>\d+) */ *(?P<total>\d+) *\|")
_PAIR = re.compile(rf"(?P<key>[A-Za-z][\w ()/.#-]*?)(?:\s*\((?P<unit>ms|s)\))?: *(?P<value>{_NUMBER})\b")
_TIMERS = re.compile(r"^time \((?P<unit>ms|s)\) ?\|(?P<rest>.*)")
_DS_TIMERS = re.compile(r"\[?(?:rank=?\d+\]?)? ?time \((?P<unit>ms)\) \| (?P<rest>.*)")
_MINMAX = re.compile(r"^\s*(?P<name>[\w-]+) *\.*: *\((?P<low>[\d.]+), (?P<high>[\d.]+)\)")
_PER_RANK = re.compile(r"^\s*rank +(?P<r>\d+) *: *(?P<value>[\d.]+) *$")
_TIMER_NAME = re.compile(r"^\s{2,}(?P<name>[a-z][\w-]+):$")
_DEEPSPEED = re.compile(
    r"(?:step|iter(?:ation)?|micro_step)[=:/ ]*(?P<step>\d+).*?(?:RunningAvgSamplesPerSec=(?P<average>[\d.]+).*?)?(?:CurrSamplesPerSec|samples/sec)[=: ]*(?P<rate>[\d.]+)(?:.*?TFLOPs?[=: ]*(?P<tflops>[\d.]+))?"
)
_EXAMPLE = re.compile(
    r"(?:Epoch: ?\[(?P<epoch>\d+)\])? ?\[ *(?P<step>\d+)/ *(?P<total>\d+)\]\s+(?:eta: \S+\s+)?.*?Time\s*:?\s*(?P<time>[\d.]+) *\( *[\d.]+\).*?Data\s*:?\s*(?P<data>[\d.]+) *\( *[\d.]+\)"
)
_MMENGINE = re.compile(
    r"(?:Epoch|Iter).*?\[ *(?P<step>\d+)/(?P<total>\d+)\].*?\btime: (?P<time>[\d.]+).*?data_time: (?P<data>[\d.]+)"
)
_TITAN = re.compile(
    r"step: *(?P<step>\d+) .*?loss: *(?P<loss>[\w.+-]+).*?tps: *(?P<tps>[\d,]+)(?:.*?tflops: *(?P<tflops>[\d.,]+))?(?:.*?mfu: *(?P<mfu>[\d.]+)%?)?"
)
_NEMO = re.compile(
    r"(?:global_step|step)[=: ]+(?P<step>\d+).*?(?:train_step_timing in s|step_time(?:_s)?|iter_time)[=: ]+(?P<time>[\d.]+)"
)
_STEP = re.compile(
    r"\b(?:step|iter|iteration|it)[ =:#]*(?P<step>\d+)\b.*?\b(?P<key>step[_ ]time|iter[_ ]time|time[_ ]per[_ ]iter\w*|time|elapsed|took|duration)[ =:]*(?P<time>[\d.]+) ?(?P<unit>ms|s|sec)?\b",
    re.IGNORECASE,
)
_STRAGGLER = re.compile(
    r"(?P<detail>.*(?:[Ss]traggler|GPU relative performance|GPU individual performance|slow rank|Slowest rank|slowest rank).*)"
)
_SAVE = re.compile(
    r"(?:saving checkpoint at iteration|successfully saved checkpoint (?:at|from) iteration|Saving checkpoint|saved checkpoint) *(?P<iteration>\d+)?",
    re.IGNORECASE,
)
_NAN = re.compile(
    r"(?:loss(?: is|[ =:]+)\s*(?:nan|inf)\b|found NaN in|rank \d+.*(?:NaN|nan) .*loss|Detected (?:nan|inf)|OVERFLOW!|loss scale.*(?:reached|below) minimum)",
    re.IGNORECASE,
)
MAX_JOINED = 6
"""Lines that one record may be broken into."""


class Training:
    """See the module."""

    needles: tuple[str, ...] = (
        "iteration ", "time (ms)", "time (s)", "across ranks", "SamplesPerSec", "samples/sec", "Time", "data_time", "tps:", "step_timing",
        "step_time", "step time", "iter_time", "iter time", "traggler", "relative performance", "individual performance", "lowest rank",
        "checkpoint", "nan", "NaN", "OVERFLOW", " rank ", "Step time", "Iter time", "time_per_iter", "time per iter",
    )  # fmt: skip  # fmt: skip

    def __init__(self) -> None:
        self._held: Line | None = None
        self._joined = 0
        self._timer = ""
        self._block = 0

    @property
    def open(self) -> bool:
        """Within a broken record or a table of timers."""
        return self._held is not None or self._block > 0

    def feed(self, line: Line) -> list[LogFact]:
        """Facts of a line, or of the record that it ends."""
        facts: list[LogFact] = []
        if self._held is not None:
            if _MEGATRON.search(line.text) is None and self._joined < MAX_JOINED and not line.shape:
                self._joined += 1
                self._held = replace(self._held, text=f"{self._held.text}{line.text}")
                if line.text.rstrip().endswith("|"):
                    return self.flush()
                return []
            facts = self.flush()
        if _MEGATRON.search(line.text) is not None:
            self._held, self._joined = line, 0
            return facts + (self.flush() if line.text.rstrip().endswith("|") else [])
        return facts + self._whole(line)

    def _whole(self, line: Line) -> list[LogFact]:
        self._block = max(0, self._block - 1)
        timers = _TIMERS.search(line.text) or _DS_TIMERS.search(line.text)
        if timers is not None:
            return [_timers(line, timers["rest"], timers["unit"])]
        table = self._table(line)
        if table is not None:
            return table
        for name, form in (
            ("example", _EXAMPLE), ("mmengine", _MMENGINE), ("deepspeed", _DEEPSPEED), ("titan", _TITAN), ("nemo", _NEMO),
        ):  # fmt: skip
            match = form.search(line.text)
            if match is not None:
                return [_numbers(fact_of(line, FactKind.ITERATION, name, {}), match)]
        straggler = _STRAGGLER.search(line.text)
        if straggler is not None:
            return [fact_of(line, FactKind.RANK_TIME, "straggler_line", dict(straggler.groupdict()))]
        if _NAN.search(line.text):
            return [fact_of(line, FactKind.ITERATION, "not_a_number", {})]
        save = _SAVE.search(line.text)
        if save is not None:
            return [fact_of(line, FactKind.ITERATION, "checkpoint", dict(save.groupdict()))]
        step = _STEP.search(line.text)
        if step is not None:
            factor = 0.001 if step["unit"] == "ms" else 1.0
            return [
                fact_of(
                    line,
                    FactKind.ITERATION,
                    "step",
                    {"step": step["step"]},
                    time=float(step["time"].strip(".") or 0) * factor,
                )
            ]
        return []

    def _table(self, line: Line) -> list[LogFact] | None:
        """Rows of Megatron's timers: "(min, max) time across ranks", or all ranks one below the other."""
        if "time across ranks (ms)" in line.text or "times across ranks (ms)" in line.text:
            self._block = 4000
            return []
        if not self._block:
            return None
        pair = _MINMAX.search(line.text)
        if pair is not None:
            return [
                fact_of(
                    line,
                    FactKind.TIMERS,
                    "min_max",
                    {"timer": pair["name"].rstrip("."), "low": pair["low"], "high": pair["high"]},
                )
            ]
        name = _TIMER_NAME.match(line.text)
        if name is not None:
            self._timer = name["name"]
            return []
        row = _PER_RANK.match(line.text)
        if row is not None and self._timer:
            return [
                replace(
                    fact_of(line, FactKind.RANK_TIME, "timer", {"timer": self._timer, "ms": row["value"]}),
                    rank=int(row["r"][:9]),
                )
            ]
        return None

    def flush(self) -> list[LogFact]:
        """The record that was being put together."""
        held, self._held, self._joined = self._held, None, 0
        if held is None:
            return []
        match = _MEGATRON.search(held.text)
        assert match is not None
        fields: dict[str, Value] = {"step": int(match["iteration"][:18]), "total": int(match["total"][:18])}
        for pair in _PAIR.finditer(held.text[match.end() :]):
            key = " ".join(pair["key"].split()).strip(" |").lower()
            fields.setdefault(
                key + (f" ({pair['unit']})" if pair["unit"] else ""), value(pair["value"].replace(",", ""))
            )
        ms, seconds = (
            fields.get("elapsed time per iteration (ms)"),
            fields.get("elapsed time per iteration (s)"),
        )
        if isinstance(ms, int | float):
            fields["time"] = ms / 1000
        elif isinstance(seconds, int | float):
            fields["time"] = float(seconds)
        for key in ("tflops", "throughput per gpu (tflop/s/gpu)", "tflop/s/gpu"):
            if key in fields:
                fields["tflops"] = fields[key]
        return [fact_of(held, FactKind.ITERATION, "megatron", {}, **fields)]


def _numbers(fact: LogFact, match: re.Match[str]) -> LogFact:
    parts = [
        (key, value(text.replace(",", ""))) for key, text in match.groupdict().items() if text is not None
    ]
    return replace(fact, fields=tuple(parts))


def _timers(line: Line, rest: str, unit: str) -> LogFact:
    """Timers of one line, in ms."""
    factor = 1000.0 if unit == "s" else 1.0
    pairs = re.findall(rf"([A-Za-z][\w /-]*?) *: *({_NUMBER})", rest)
    fields = {name.strip(): float(text.replace(",", "")) * factor for name, text in pairs}
    return replace(fact_of(line, FactKind.TIMERS, "line", {}), fields=tuple(fields.items()))
