"""The first sentence in Chinese, composed from the structure of a diagnosis.

For sentences that ``sentences_zh`` has no pattern of (of a newer analysis, say): who did what, where and at
what cost stands in the fields of a finding. The terminal shows the English sentence below, so that nothing is
lost.
"""

from __future__ import annotations

from megatrace.model.finding import Diagnosis, Finding, Kind, Severity, Status, Verdict
from megatrace.reports.describe import Scene, cost, culprit_lines, iterations, where
from megatrace.reports.sentences_zh import translated
from megatrace.reports.wording import plain
from megatrace.units import format_count

_DID = {
    Kind.SLOW_COMPUTE: "计算变慢",
    Kind.SLOW_HOST: "主机侧变慢",
    Kind.SLOW_NETWORK: "网络变慢",
    Kind.SLOW_STORAGE: "存储变慢",
    Kind.SLOW_UNIFORM: "整体偏慢",
    Kind.IMBALANCE: "负载不均",
    Kind.JITTER: "迭代时间抖动",
    Kind.HANG_HOST: "主机进程停止发起调用",
    Kind.HANG_DEVICE: "设备队列停住",
    Kind.HANG_NETWORK: "网络传输卡住",
    Kind.HANG_GROUP: "所在的组挂起，无法进一步区分",
    Kind.MISMATCH: "通信调用与同组其他 rank 不匹配",
    Kind.DEADLOCK: "形成死锁",
    Kind.DEAD_RANK: "已退出",
    Kind.HARDWARE: "出现硬件故障",
    Kind.CONFIGURATION: "配置错误",
    Kind.SOFTWARE: "软件错误",
    Kind.RESOURCE: "资源耗尽",
}


def headline(diagnosis: Diagnosis, scene: Scene) -> str:
    """The verdict as one Chinese sentence."""
    if diagnosis.verdict is Verdict.HEALTHY:
        job = diagnosis.job
        if not job.ranks_seen:  # logs and outputs of tools
            return "未发现会使作业停止或变慢的问题"
        looked = f"检查了 {format_count(job.ranks_seen)} 个 rank"
        if job.iterations:
            looked += f"、{format_count(job.iterations)} 次迭代"
        return f"未发现异常：{looked}"
    if not diagnosis.findings or diagnosis.verdict is Verdict.UNDECIDABLE:
        return "现有记录不足以得出结论"
    return sentence(diagnosis.findings[0], scene)


def told(finding: Finding, scene: Scene) -> str:
    """The sentence of a finding. A note that has no translation stays English: composed from its kind alone
    it would claim what it does not ("hardware fault" of two possible causes).
    """
    english = plain(finding.summary)
    known = translated(english)
    if known is None and finding.severity > Severity.P2:
        return english
    return known or sentence(finding, scene)


def sentence(finding: Finding, scene: Scene) -> str:
    """One finding: who did what, where, in which iterations, at what cost."""
    parts = [f"{_who(finding, scene)}{_did(finding)}".strip()]
    window = finding.window
    place = where(scene, finding)
    if place:
        parts.append(place)
    if window is not None and (finding.where.iteration is None or not place):
        parts.append(iterations(scene, window))
    if finding.kind.verdict is not Verdict.HANG:
        parts.append(cost(scene, finding))
    if finding.status is not Status.ONGOING:
        parts.append(scene.texts.status(finding.status))
    return "，".join(part for part in parts if part).replace(" · ", "，")


def _who(finding: Finding, scene: Scene) -> str:
    who = finding.culprits
    if not (who.ranks or who.nodes or who.devices or who.links):
        return ""
    names = [line.split(" · ")[0] for line in culprit_lines(scene, finding)]
    shown = "、".join(names[:3]) + (f" 等 {len(names)} 处" if len(names) > 3 else "")
    return (
        f"{shown} 之一"
        if finding.ambiguous and len(names) > 1 and finding.kind is not Kind.HANG_GROUP
        else shown
    )


def _did(finding: Finding) -> str:
    if finding.kind is Kind.MISSING_CALL:
        return f" 没有发起 {plain(finding.where.op or '通信调用')}"
    return " " + _DID[finding.kind]
