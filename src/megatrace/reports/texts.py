"""The fixed words of the reports in English and Chinese, side by side so that one cannot be changed alone.

Chinese keeps the field's English nouns where Chinese engineers say them in English (rank, stage,
micro-batch). Sentences that come with a diagnosis (evidence, remedies, notes) are not here but in
``sentences_zh``.

Does not choose what to say (``terminal``, ``chinese``).
"""

from __future__ import annotations

from megatrace.model.finding import Kind, Status, Verdict
from megatrace.model.schedule import Phase
from megatrace.reports.sentences_zh import phrase, translated

VERDICTS = {
    Verdict.FAILED: ("FAILED", "失败"),
    Verdict.HANG: ("HANG", "挂起"),
    Verdict.SLOW: ("SLOW", "变慢"),
    Verdict.UNDECIDABLE: ("CANNOT TELL", "无法判断"),
    Verdict.HEALTHY: ("HEALTHY", "正常"),
}

KINDS = {
    Kind.SLOW_COMPUTE: ("slow compute", "计算慢"),
    Kind.SLOW_HOST: ("slow host", "主机侧慢"),
    Kind.SLOW_NETWORK: ("slow network", "网络慢"),
    Kind.SLOW_STORAGE: ("slow storage", "存储慢"),
    Kind.SLOW_UNIFORM: ("slow everywhere", "整体偏慢"),
    Kind.IMBALANCE: ("imbalance", "负载不均"),
    Kind.JITTER: ("jitter", "抖动"),
    Kind.HANG_HOST: ("host stopped calling", "主机进程停止调用"),
    Kind.HANG_DEVICE: ("device queue stopped", "设备队列停住"),
    Kind.HANG_NETWORK: ("network transfer stuck", "网络传输卡住"),
    Kind.HANG_GROUP: ("hang inside a group", "组内挂起"),
    Kind.MISMATCH: ("mismatched calls", "通信调用不匹配"),
    Kind.MISSING_CALL: ("missing call", "缺少调用"),
    Kind.DEADLOCK: ("deadlock", "死锁"),
    Kind.DEAD_RANK: ("dead rank", "rank 已退出"),
    Kind.HARDWARE: ("hardware", "硬件故障"),
    Kind.CONFIGURATION: ("configuration", "配置错误"),
    Kind.SOFTWARE: ("software", "软件错误"),
    Kind.RESOURCE: ("out of a resource", "资源耗尽"),
}

STATUSES = {
    Status.ONGOING: ("still so at the end", "至记录结束仍未恢复"),
    Status.RECOVERED: ("recovered", "已恢复"),
    Status.INTERMITTENT: ("comes and goes", "时有时无"),
}

PHASES = {
    Phase.FORWARD: ("forward", "前向"),
    Phase.BACKWARD: ("backward", "反向"),
    Phase.SYNC: ("gradient sync", "梯度同步"),
    Phase.OTHER: ("outside forward and backward", "前向与反向之外"),
}

LABELS = {
    "culprit": ("culprit", "故障点"),
    "one_of": ("one of", "其中之一"),
    "when": ("when", "时间"),
    "where": ("where", "位置"),
    "cost": ("cost", "代价"),
    "why": ("why", "依据"),
    "not": ("not", "排除"),
    "chain": ("chain", "等待链"),
    "victims": ("victims", "受影响"),
    "kind": ("kind", "类型"),
    "follows": ("follows", "起因"),
    "do": ("do", "处理"),
    "either": ("either", "可能"),
    "missing": ("missing", "缺少"),
    "collect": ("collect", "采集"),
    "next": ("next", "下一步"),
    "stages": ("stages", "各 stage"),
    "coverage": ("coverage", "覆盖"),
    "warning": ("warning", "警告"),
    "job": ("job", "作业"),
    "inputs": ("inputs", "输入"),
    "also": ("ALSO", "另外"),
    "note": ("note", "备注"),
    "original": ("in English", "英文原文"),
}

PHRASES = {
    "confidence": ("confidence {value}", "置信度 {value}"),
    "nobody": ("no single rank", "没有单一的 rank"),
    "rank": ("rank {rank}", "rank {rank}"),
    "ranks": ("ranks {ranks}", "rank {ranks}"),
    "ranks_counted": ("ranks {ranks} ({count})", "rank {ranks}（{count} 个）"),
    "count_of": ("{count} of {total} ranks", "{total} 个 rank 中的 {count} 个"),
    "count_ranks": ("{count} ranks", "{count} 个 rank"),
    "count_ranks_one": ("1 rank", "1 个 rank"),
    "link": ("link {src} → {dst}", "链路 {src} → {dst}"),
    "port": ("port {port}", "端口 {port}"),
    "stage": ("stage {stage}", "stage {stage}"),
    "kinds": ("{kinds}: these recordings cannot tell which", "{kinds}：现有记录无法区分"),
    "or": (" or ", "或"),
    "waited": ("{who}: they only waited", "{who}：只是在等待"),
    "waiting": ("{who} wait for this, directly or through others", "{who}：直接或间接在等它"),
    "since": ("no progress since {time}", "自 {time} 起没有进展"),
    "since_when": ("since {time}", "自 {time} 起"),
    "first_seen": ("first seen {time}", "首次出现于 {time}"),
    "ago": ("{duration} ago", "{duration}前"),
    "iterations": ("iterations {first}–{last}", "第 {first}–{last} 次迭代"),
    "iteration": ("iteration {first}", "第 {first} 次迭代"),
    "after_iteration": ("after iteration {last}", "第 {last} 次迭代之后"),
    "from_iteration": ("from iteration {first} on", "自第 {first} 次迭代起"),
    "t_range": ("t = {start}–{end} s", "t = {start}–{end} s"),
    "t_from": ("t = {start} s", "t = {start} s"),
    "training_step": ("training step {step}", "训练步 {step}"),
    "phase_of": ("{phase} of micro-batch {mb}", "micro-batch {mb} 的{phase}"),
    "micro_batch": ("micro-batch {mb}", "micro-batch {mb}"),
    "from_peer": ("{op} from rank {peer}", "{op}（来自 rank {peer}）"),
    "to_peer": ("{op} to rank {peer}", "{op}（发往 rank {peer}）"),
    "slower": ("iterations take {factor}× as long", "迭代时间为原来的 {factor} 倍"),
    "lost": ("{seconds} of the job's time lost", "作业损失 {seconds}"),
    "gpu_hours": ("{hours} GPU-hours", "{hours} GPU 小时"),
    "burning": ("{ranks} GPU-hours burn every hour that it stands", "每停一小时浪费 {ranks} GPU 小时"),
    "more": ("… {count} more with --verbose", "…… 另有 {count} 条，用 --verbose 查看"),
    "missing_logs": ("recordings of {who}", "{who} 的记录"),
    "follows_from": ("follows from {ids}", "由 {ids} 引起"),
    "seen": ("{seen} of {total} ranks", "{total} 个 rank 中的 {seen} 个"),
    "lines_one": ("1 call read", "读入 1 条调用"),
    "lines": ("{count} calls read", "读入 {count} 条调用"),
    "bad_lines_one": ("1 unreadable line", "1 行无法读取"),
    "bad_lines": ("{count} unreadable lines", "{count} 行无法读取"),
    "no_gaps": ("no gaps", "无缺口"),
    "gap": ("{who}: nothing recorded in t = {start}–{end} s", "{who}：t = {start}–{end} s 无记录"),
    "records_one": ("1 record lost", "丢失 1 条"),
    "records": ("{count} records lost", "丢失 {count} 条"),
    "torn": (
        "the recordings of {who} are cut off inside a record, which says nothing about the job",
        "{who} 的记录在一条中间被截断，这不说明作业的状态",
    ),
    "spans_cut_one": ("1 span cut off", "1 个区间被截断"),
    "spans_cut": ("{count} spans cut off", "{count} 个区间被截断"),
    "clocks": ("clocks aligned to ±{error} µs", "时钟对齐误差 ±{error} µs"),
    "unaligned": ("clocks of {nodes} not aligned", "{nodes} 的时钟未对齐"),
    "nodes_one": ("1 node", "1 个节点"),
    "nodes": ("{count} nodes", "{count} 个节点"),
    "inferred": ("worked out from the calls", "由调用推断"),
    "config": ("as declared", "来自配置"),
    "no_layout": ("parallel layout not known", "并行布局未知"),
    "micro_batches_one": ("1 micro-batch", "1 个 micro-batch"),
    "micro_batches": ("{count} micro-batches", "{count} 个 micro-batch"),
    "iterations_seen_one": ("1 iteration", "1 次迭代"),
    "iterations_seen": ("{count} iterations", "{count} 次迭代"),
    "numbered": ("numbered from the first one seen", "从记录中的第一次开始编号"),
    "median": ("median {time}", "中位数 {time}"),
    "p95": ("p95 {time}", "p95 {time}"),
    "against": ("compared with {baseline}", "对比基准：{baseline}"),
    "imbalance": (
        "worst stage imbalance {percent} % (stage {stage})",
        "stage 间最大不均衡 {percent}%（stage {stage}）",
    ),
    "reads": ("{path} ({reader}, {ranks}: {observables})", "{path}（{reader}，{ranks}：{observables}）"),
    "many_inputs": ("{count} inputs, {first} to {last}", "{count} 个输入，{first} 至 {last}"),
    "forward": ("forward", "前向"),
    "backward": ("backward", "反向"),
    "work": ("work", "计算"),
    "wait": ("wait", "等待"),
    "stage_head": ("stage", "stage"),
    "ranks_head": ("ranks", "rank"),
    "table_unit_short": ("median ms", "中位数 ms"),
    "table_unit": (
        "median ms: forward and backward a micro-batch, work █ and wait ░ an iteration",
        "中位数 ms：前向与反向按 micro-batch，计算 █ 与等待 ░ 按迭代",
    ),
    "comma": (", ", "，"),
    "enumeration": (", ", "、"),
    "listing": ("; ", "；"),
}


class Texts:
    """The words of one language: ``lang`` is "en" or "zh"."""

    __slots__ = ("_index", "lang")

    def __init__(self, lang: str = "en") -> None:
        self.lang = lang
        self._index = 1 if lang == "zh" else 0

    def say(self, key: str, **values: object) -> str:
        """A phrase with its values filled in, as they are; ``count="1"`` takes the singular."""
        if values.get("count") == "1" and f"{key}_one" in PHRASES:
            key = f"{key}_one"
        return PHRASES[key][self._index].format(**values)

    def sentence(self, text: str) -> str:
        """A sentence of a diagnosis in this language, in English where it has no other."""
        return (translated(text) or text) if self.lang == "zh" else text

    def name(self, text: str) -> str:
        """The name of a group in this language: "TP group 6 of stage 1"."""
        return phrase(text) if self.lang == "zh" else text

    def label(self, key: str) -> str:
        """A label of a row."""
        return LABELS[key][self._index]

    def verdict(self, verdict: Verdict) -> str:
        """The first word of a report."""
        return VERDICTS[verdict][self._index]

    def kind(self, kind: Kind) -> str:
        """A kind of fault in words."""
        return KINDS[kind][self._index]

    def status(self, status: Status) -> str:
        """Whether it was still there."""
        return STATUSES[status][self._index]

    def phase(self, phase: Phase) -> str:
        """A phase of an iteration."""
        return PHASES[phase][self._index]
