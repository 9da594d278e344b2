"""Sentences on dumped states (flight recorder), RAS, marks and blind spots in English and Chinese.

A table for ``sentences_zh``, which says how it is read.
"""

from __future__ import annotations

STATES: tuple[tuple[str, str], ...] = (
    # ---- flight-recorder dumps
    ("calls alone do not tell a fault of the device from a host that stands: look at both", "仅凭调用无法区分设备故障与主机停住：两者都要检查"),
    ("such dumps are written when a call has not completed within its timeout ({t} here)", "这类 dump 在调用超时（此处为 {t}）仍未完成时写出"),
    ("such dumps are written when a call has not completed within its timeout", "这类 dump 在调用超时仍未完成时写出"),
    ("in group {name} ({who}) {a} are at {b}, the other {n} at {c}", "在组 {name}（{who}）中，{a} 停在 {b}，其他 {n} 个在 {c}"),
    ("in group {name} ({who}) {a} is at {b}, the other {n} at {c}", "在组 {name}（{who}）中，{a} 停在 {b}，其他 {n} 个在 {c}"),
    ("the same in {n} other groups that they share with others", "它们与其他 rank 共有的另外 {n} 个组中也是如此"),
    ("the call that stands: {x}, called from {y}", "停住的调用：{x}，调用处为 {y}"),
    ("the call that stands: {x}", "停住的调用：{x}"),
    ("the dumps of {who} are there, and empty", "{who} 的 dump 存在，但为空"),
    ("the dump of {who} is there, and empty", "{who} 的 dump 存在，但为空"),
    ("{n} of {all} ranks ({r}) did not join {call}, in which {who} wait: either they left it out, or {x} made a call that the others never make", "{all} 个 rank 中有 {n} 个（{r}）没有参加 {call}，而 {who} 在其中等待：要么前者漏掉了它，要么后者发起了其他 rank 从不发起的调用"),
    ("Compare the code path of {who} with that of the others at this call.", "比较 {who} 与其他 rank 在该调用处的代码路径。"),
    ("{who} wrote no dump, and the others wait for them: they died, or stood so that not even a dump could be written", "{who} 没有写出 dump，而其他 rank 在等它们：它们已退出，或停住到连 dump 都无法写出"),
    ("{who} wrote no dump, and the others wait for it: it died, or stood so that not even a dump could be written", "{who} 没有写出 dump，而其他 rank 在等它：它已退出，或停住到连 dump 都无法写出"),
    ("{n} of {all} ranks have an open call, and every chain of waiting ends at {who}", "{all} 个 rank 中有 {n} 个有未完成的调用，每条等待链都终止于 {who}"),
    ("a rank whose dump is missing may itself be waiting for something that is not seen", "缺少 dump 的 rank 自身也可能在等待看不到的东西"),
    ("Look for the end of these processes first: exit codes, the kernel log, the launcher's output. With their dumps added the answer is certain.", "先查这些进程的结局：退出码、内核日志、启动器的输出。补上它们的 dump，结论就是确定的。"),
    ("{n} of {m} dumps do not reach back to the start of the job.", "{m} 个 dump 中有 {n} 个没有追溯到作业开始。"),
    ("The dumps of {who} hold no call.", "{who} 的 dump 中没有调用。"),
    ("Only the report on the dumps was read, not the dumps.", "只读入了关于 dump 的报告，没有读入 dump 本身。"),
    ("on the nodes of the ranks named, twice: a stack that stays shows who stands", "在上述 rank 所在的节点上执行两次：保持不变的调用栈说明谁停住了"),
    ("if the job stood until TIME without another call, that decides it", "如果作业直到 TIME 都没有新的调用，就可以断定"),
    # ---- what was not recorded, and what processes marked
    ("the job stands at {who}: {a} made no further call that is recorded, and may wait in {x}", "作业停在 {who}：{a} 此后没有被记录到的调用，可能在未被记录的通信中等待"),
    ("the job stands: {who} made no further call that is recorded, and may wait for any rank in {x}", "作业停住：{who} 此后没有被记录到的调用，可能在未被记录的通信中等待任意 rank"),
    ("rank {r} was in training step {k} by its optimizer, and had begun the {phase}", "按优化器计数，rank {r} 处于第 {k} 个训练步，已开始 {phase}"),
    ("rank {r} was in training step {k} by its optimizer", "按优化器计数，rank {r} 处于第 {k} 个训练步"),
    # ---- NCCL RAS
    ("{who} are unresponsive: they did not answer RAS, and are not yet considered dead", "{who} 无响应：没有回答 RAS，尚未被视为已退出"),
    ("{who} is unresponsive: it did not answer RAS, and is not yet considered dead", "{who} 无响应：没有回答 RAS，尚未被视为已退出"),
    ("{who} are considered dead: RAS has not reached them for about a minute", "{who} 被视为已退出：RAS 约一分钟联系不上"),
    ("{who} is considered dead: RAS has not reached it for about a minute", "{who} 被视为已退出：RAS 约一分钟联系不上"),
    ("asks a live job twice, some seconds apart: a hang stays as it is", "相隔数秒询问运行中的作业两次：挂起的状态不会改变"),
    ("the same from two saved answers (ncclras -f json -v)", "同上，使用两次保存的回答（ncclras -f json -v）"),
    ("on any node: whether the host waits in a call, and in which", "在任一节点上执行：主机是否在某个调用中等待，是哪一个"),
    ("flight-recorder dumps say whether the last calls completed", "flight recorder 的 dump 说明最后的调用是否完成"),
    ("Look at that process and its node: is it running, is it stopped, can it be reached; then the kernel log. The others only wait.", "检查该进程及其节点：是否在运行、是否被停止、能否连通；然后查看内核日志。其他 rank 只是在等待。"),
    ("all collective counts are 0: the job has not run a collective yet, it is starting", "所有集合通信计数均为 0：作业尚未执行集合通信，正在启动"),
    ("no rank that answered reports an error (async_error 0, success)", "已回答的 rank 都没有报告错误（async_error 0，success）"),
    ("nothing moved between two answers {t} apart", "相隔 {t} 的两次回答之间没有任何前进"),
    ("nothing moved between two answers", "两次回答之间没有任何前进"),
    ("Take stacks of the ranks that are behind first (py-spy dump): RAS sees only launches.", "先取落后 rank 的调用栈（py-spy dump）：RAS 只能看到发起。"),
    ("cannot tell: RAS knows of no communicator", "无法判断：RAS 没有任何通信域"),
)  # fmt: skip
