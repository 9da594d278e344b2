"""The words that only the HTML report has: titles of pictures, what they mean, controls; English and Chinese.

What a fault is called, and how it is described, stands in ``texts`` and ``describe``, so that the terminal
and the page say the same. Words that the page's script says travel in the page (``SCRIPT``).

Does not choose what to show (``html_view``).
"""

from __future__ import annotations

PAGE = {
    "made": ("made {time} UTC", "生成于 {time} UTC"),
    "skip": ("Skip to the pictures", "跳到图表"),
    "theme": ("Theme", "主题"),
    "print": ("Print", "打印"),
    "finding": ("What was found", "诊断结果"),
    "who": ("Culprit", "故障点"),
    "one_of": ("One of these", "其中之一"),
    "since": ("When", "时间"),
    "cost": ("Cost", "代价"),
    "sure": ("Confidence", "置信度"),
    "unknown": ("not known", "未知"),
    "why": ("Why", "依据"),
    "not": ("What it is not", "排除"),
    "do": ("What to do", "处理"),
    "collect": ("What to collect", "采集"),
    "could_be": ("Two or more explanations fit", "可能的解释"),
    "missing": ("Missing", "缺少"),
    "also": ("Also found", "另外发现"),
    "notes": ("Notes", "备注"),
    "waits": ("Who waits for whom", "等待链"),
    "waits_say": (
        "From a victim at the top down to the culprit: each rank waits for the next one.",
        "自上而下，从受影响的 rank 到故障点：每个 rank 都在等下一个。",
    ),
    "kinds": ("Kind", "类型"),
    "where": ("Where", "位置"),
    "victims": ("Victims", "受影响"),
    "follows": ("Follows from", "起因"),
    "copy": ("Copy", "复制"),
    "more": ("Show {count} more", "另有 {count} 条"),
    "details": ("Details", "细节"),
    "table": ("As a table", "表格"),
    "first_rows": ("The {count} longest of {total}.", "共 {total} 项，列出最长的 {count} 项。"),
    "pictures": ("Pictures", "图表"),
    "background": ("What it was worked out from", "判断所依据的信息"),
    "coverage": ("Coverage", "覆盖"),
    "warnings": ("Warnings", "警告"),
    "inputs": ("Inputs", "输入"),
    "config": ("Configuration", "配置"),
    "value": ("Value", "值"),
    "source": ("Source", "来源"),
    "again": ("How to reproduce", "如何复现"),
    "again_say": (
        "The same inputs and the same version give the same verdict.",
        "相同的输入和版本得到相同的结论。",
    ),
    "alternatives": ("Alternatives", "其他解释"),
    "original": ("in English", "英文原文"),
    "no_script": (
        "The pictures need JavaScript, which runs in this file only. Everything else can be read without it.",
        "图表需要 JavaScript（只在本文件内运行，不加载任何内容）。其余内容无需它即可阅读。",
    ),
    "nothing_drawn": (
        "The recordings did not show enough to draw a picture: no iteration could be told apart.",
        "记录不足以绘图：无法区分各次迭代。",
    ),
    "iterations": ("Iteration time", "迭代时间"),
    "iterations_say": (
        "One point an iteration; the line is the median. {window}",
        "每点一次迭代；横线为中位数。{window}",
    ),
    "iterations_window": ("Shaded: {window}.", "阴影：{window}。"),
    "heat": ("Work of every rank", "各 rank 的计算"),
    "heat_say": (
        "One row a rank, one column an iteration, waiting taken out. Rows go by stage, then by group.",
        "每行一个 rank，每列一次迭代，已扣除等待。按 stage、再按组排列。",
    ),
    "heat_group": (
        "Host times show the work of a tensor group, not of its members.",
        "主机时间只显示张量组整体的计算，不区分成员。",
    ),
    "heat_joined": (
        "{count} neighbouring ranks share a row, which shows the longest of them.",
        "相邻 {count} 个 rank 合为一行，取最长者。",
    ),
    "heat_thinned": (
        "{drawn} of {total} ranks are drawn.",
        "绘出 {total} 个 rank 中的 {drawn} 个。",
    ),
    "gantt": ("Iteration {number}, stage by stage", "第 {number} 次迭代（按 stage）"),
    "gantt_plain": ("One iteration, stage by stage", "一次迭代（按 stage）"),
    "gantt_say": (
        "One row a stage, numbers are micro-batches.",
        "每行一个 stage，数字为 micro-batch。",
    ),
    "gantt_path": (
        "The bold line is the critical path: it sets the pace.",
        "粗线为关键路径：它决定迭代的快慢。",
    ),
    "gantt_stands": (
        "One row a stage, as the job stood at the end of the recording. Hollow: begun and never finished.",
        "每行一个 stage，为记录结束时作业停住的样子。空心：已开始但未完成。",
    ),
    "late": ("Lateness inside the culprit's group", "故障点所在组内的迟到"),
    "late_say": (
        "How much later than the first of its group each rank came to a call, in order of time.",
        "各 rank 比组内最先到者晚多少发起组内调用，按记录顺序。",
    ),
    "queue_depth": ("Queue depth", "队列深度"),
    "outstanding_bytes": ("Bytes on their way", "在途字节"),
    "bandwidth": ("Bandwidth", "带宽"),
    "series": ("Series", "序列"),
    "series_say": ("As recorded, one line a link or device.", "按记录，每条链路或设备一条线。"),
    "median_value": ("Median", "中位数"),
    "greatest": ("Greatest", "最大值"),
    "stages": ("Stages", "各 stage"),
    "stages_say": (
        "Medians of undisturbed iterations in ms: forward, backward a micro-batch; work, wait an iteration.",
        "未受干扰的迭代的中位数（ms）：前向与反向按 micro-batch，计算与等待按迭代。",
    ),
    "stage": ("Stage", "Stage"),
    "ranks": ("Ranks", "Rank"),
    "forward": ("Forward", "前向"),
    "backward": ("Backward", "反向"),
    "work": ("Work", "计算"),
    "wait": ("Wait", "等待"),
    "share": ("Work and wait", "计算与等待"),
    "iteration": ("Iteration", "迭代"),
    "starts": ("Starts", "开始"),
    "takes": ("Takes", "用时"),
    "rank": ("Rank", "Rank"),
    "median_work": ("Median work", "计算中位数"),
    "longest_work": ("Longest work", "最长计算"),
    "ends": ("Ends", "结束"),
    "task": ("Task", "任务"),
    "never": ("never", "未结束"),
    "median_late": ("Median lateness", "迟到中位数"),
    "declared": ("as declared", "来自配置"),
    "inferred": ("from the calls", "由调用推断"),
    "seen": ("counted", "计数"),
    "schedule": ("Schedule", "调度"),
    "micro_batches": ("Micro-batches", "Micro-batch 数"),
    "gpus": ("Ranks", "Rank 数"),
    "nodes": ("Nodes", "节点"),
    "iterations_count": ("Iterations", "迭代次数"),
    "median_time": ("Median iteration", "迭代中位数"),
    "p95_time": ("95 % of iterations within", "95% 的迭代不超过"),
    "baseline": ("Compared with", "对比基准"),
    "order": ("Order of axes", "轴的顺序"),
    "clock": ("Time zero", "零时刻"),
}

SCRIPT = {
    "zoom_in": ("Zoom in", "放大"),
    "zoom_out": ("Zoom out", "缩小"),
    "reset": ("Whole picture", "复位"),
    "find": ("Find a rank or node", "查找 rank 或节点"),
    "not_found": ("no such rank in this picture", "此图中没有这个 rank"),
    "keys": (
        "Arrow keys move, Enter pins, + and − zoom, Shift with arrows pans, 0 shows all, Escape unpins.",
        "方向键移动，Enter 固定，+ 与 − 缩放，Shift 加方向键平移，0 复位，Esc 取消固定。",
    ),
    "mouse": (
        "Drag to pan, Ctrl + wheel to zoom, click to pin.",
        "拖动平移，Ctrl + 滚轮缩放，点击固定。",
    ),
    "iteration": ("iteration", "迭代"),
    "iteration_axis": ("iteration", "迭代"),
    "lost": ("not recorded", "无记录"),
    "median": ("median", "中位数"),
    "stage": ("stage", "stage"),
    "rank": ("rank", "rank"),
    "ranks": ("ranks", "rank"),
    "work": ("work", "计算"),
    "usual": ("of its stage's median", "（相对本 stage 中位数）"),
    "relative": ("against its stage", "相对本 stage"),
    "absolute": ("milliseconds", "毫秒"),
    "forward": ("forward", "前向"),
    "backward": ("backward", "反向"),
    "sync": ("gradient sync", "梯度同步"),
    "other": ("other", "其他"),
    "wait": ("wait", "等待"),
    "critical": ("critical path", "关键路径"),
    "unfinished": ("never finished", "未完成"),
    "micro_batch": ("micro-batch", "micro-batch"),
    "others": ("others of the group", "组内其他 rank"),
    "late": ("late", "迟到"),
    "seconds": ("s after t0", "t0 后秒数"),
    "calls": ("calls, in order", "调用（按顺序）"),
    "pinned": ("pinned", "已固定"),
    "window": ("window", "窗口"),
    "stood": ("stands here", "停在此处"),
    "stopped": ("its calls end here", "调用到此为止"),
    "copied": ("Copied", "已复制"),
    "light": ("Light", "浅色"),
    "dark": ("Dark", "深色"),
    "auto": ("As the system", "跟随系统"),
    "old": (
        "This browser is too old to unpack the pictures (it lacks DecompressionStream).",
        "浏览器过旧，无法解开图表数据（缺少 DecompressionStream）。",
    ),
}


class PageTexts:
    """The words of one language: ``lang`` is "en" or "zh"."""

    __slots__ = ("_index",)

    def __init__(self, lang: str) -> None:
        self._index = 1 if lang == "zh" else 0

    def __call__(self, key: str, **values: object) -> str:
        """A phrase with its values filled in, as they are."""
        text = PAGE[key][self._index]
        return text.format(**values) if values else text

    def script(self) -> dict[str, str]:
        """All words that the page's script says."""
        return {key: pair[self._index] for key, pair in SCRIPT.items()}
