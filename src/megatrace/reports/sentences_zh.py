"""The sentences of the analysis in Chinese: an English pattern and its Chinese counterpart, side by side.

A finding is said once, in English, where it is found: its numbers and names stand in the sentence. Here each
sentence that the analysis of communication calls can say has its pattern; what stands in the holes (ranks,
places, calls) is translated by the same means or, being a name or a number, left. A sentence without a pattern
stays English, which is better than a wrong translation; a test collects what the analysis says of simulated
jobs, and names every sentence that lacks one. What is quoted from a log (in quotes, or in a hole named ``said``)
stays as it was printed; those on RAS and dumps, and rare ones on logs, are there in part.

Does not choose what is said, and knows nothing of diagnoses.
"""

from __future__ import annotations

import re
from functools import lru_cache

from megatrace.reports.sentences_zh_logs import LOG_PHRASES, LOGS
from megatrace.reports.sentences_zh_machines import MACHINE_PHRASES, MACHINES
from megatrace.reports.sentences_zh_remedies import REMEDIES
from megatrace.reports.sentences_zh_states import STATES
from megatrace.reports.sentences_zh_xid import XID_MEANINGS, XID_REMEDIES

_SENTENCES: tuple[tuple[str, str], ...] = (
    # ---- hangs: the first sentence
    ("{what}: after iteration {k}", "{what}（第 {k} 次迭代之后）"),
    ("{what}: stage {s}, after iteration {k}", "{what}（stage {s}，第 {k} 次迭代之后）"),
    ("{what}: stage {s}, {phase}, iteration {k}", "{what}（stage {s}，{phase}，第 {k} 次迭代）"),
    ("{what}: stage {s}, iteration {k}", "{what}（stage {s}，第 {k} 次迭代）"),
    ("{what}: {phase}, iteration {k}", "{what}（{phase}，第 {k} 次迭代）"),
    ("{what}: iteration {k}", "{what}（第 {k} 次迭代）"),
    ("{what}: stage {s}", "{what}（stage {s}）"),
    ("deadlock: {who} called {a} before {b}, its peers the other way round",
     "死锁：{who} 先发起 {a}，后发起 {b}，而同组其他 rank 的顺序相反"),
    ("deadlock: {who} entered {a} before {b}, the others the other way round",
     "死锁：{who} 先进入 {a}，后进入 {b}，其他 rank 的顺序相反"),
    ("deadlock: {who} wait for each other in a circle", "死锁：{who} 互相循环等待"),
    ("all {n} ranks of {node} ({who}) stopped at the same moment", "{node} 的全部 {n} 个 rank（{who}）同时停止"),
    ("{who} stopped calling: {rest}", "{who} 停止发起调用：{rest}"),
    ("{who} never posted {call} and went on without it", "{who} 跳过了 {call}，继续执行后面的调用"),
    ("{who} never posted {call}", "{who} 一直没有发起 {call}"),
    ("{who} left out a call of {comm} and went on without it", "{who} 漏掉了 {comm} 的一次调用，继续执行后面的调用"),
    ("{who} left out a call of {comm}", "{who} 漏掉了 {comm} 的一次调用"),
    ("{who} left out {call} and went on without it", "{who} 漏掉了 {call}，继续执行后面的调用"),
    ("{who} left out {call}: {differs}", "{who} 漏掉了 {call}：{differs}"),
    ("{who} died: its host and its device stopped at the same moment", "{who} 已退出：主机与设备同时停止"),
    ("{who} stopped calling", "{who} 停止发起调用"),
    ("{who} died", "{who} 已退出"),
    ("the job stands at {name}: all its members made the same calls and none went on",
     "作业停在 {name}：组内所有成员都发起了相同的调用，此后都没有继续"),
    ("the device of {who} stopped before {call}", "{who} 的设备停在 {call} 之前"),
    ("the device of {who} stopped in {call}", "{who} 的设备停在 {call} 之中"),
    ("the device of {who} stopped at {call}", "{who} 的设备停在 {call}"),
    ("the devices of {who} stopped: {rest}", "{who} 的设备停住：{rest}"),
    ("nothing passes between {a} and {b}", "{a} 与 {b} 之间没有数据通过"),
    ("{call} was called by all its members and completed on none", "{call} 由所有成员发起，但没有一个完成"),
    ("{who} passed {a} elements where the others passed {b}, as {call}",
     "{who} 在 {call} 中传入 {a} 个元素，而其他 rank 传入 {b} 个"),
    ("{who} passed {a} of {n} elements where the others called {b} of {m}, as {call}",
     "{who} 在 {call} 处发起 {n} 个元素的 {a}，而其他 rank 发起 {m} 个元素的 {b}"),
    ("{who} called {a} of {n} elements where the others called {b} of {m}, as {call}",
     "{who} 在 {call} 处发起 {n} 个元素的 {a}，而其他 rank 发起 {m} 个元素的 {b}"),
    ("{who} called {a} of {n} elements where the others called {b}, as {call}", "{who} 在 {call} 处发起 {n} 个元素的 {a}，而其他 rank 发起 {b}"),
    ("{who} called {a} where the others called {b} of {m}, as {call}",
     "{who} 在 {call} 处发起 {a}，而其他 rank 发起 {m} 个元素的 {b}"),
    ("{who} made two calls of {comm} in the wrong order: {differs}, as {call}",
     "{who} 把 {comm} 的两次调用顺序弄反：{differs}，位于 {call}"),
    ("{who} called different things as {call}; who is wrong is not known",
     "{who} 在 {call} 处发起的调用各不相同，无法判断哪一方有误"),
    # ---- hangs: reasons
    ("{n} of {all} ranks wait for it, directly or through others",
     "{all} 个 rank 中有 {n} 个直接或间接在等它"),
    ("the job stands: others went on for {t} after it", "作业已停住：其他 rank 在它之后又运行了 {t}"),
    ("the job stands: {why}", "作业已停住：{why}"),
    ("no rank moved for {t}", "{t} 内没有任何 rank 前进"),
    ("nobody made a call for {t}; the longest pause before was {u}",
     "{t} 内没有任何 rank 发起调用，此前最长的停顿为 {u}"),
    ("others went on for {t} after it", "其他 rank 在它之后又运行了 {t}"),
    ("the recording ends before it could show that the job stands: the calls alone prove the fault",
     "记录结束时还看不出作业是否停住：仅凭调用本身即可证明故障"),
    ("{who} stopped only afterwards: victims, not the cause", "{who} 在其后才停止：是受影响者，而不是起因"),
    ("nothing completed can be seen in this log; {who} is the only one that its peers are ahead of",
     "该日志看不到调用是否完成；只有 {who} 落后于同组其他 rank"),
    ("nothing completed can be seen in this log", "该日志看不到调用是否完成"),
    ("{who} is the only one that its peers are ahead of", "只有 {who} 落后于同组其他 rank"),
    ("{who} are the only ones that their peers are ahead of; the log cannot separate them",
     "只有 {who} 落后于同组其他 rank；日志无法把它们区分开"),
    ("{who}, which runs the same program, made that call and waits in a later one",
     "执行相同程序的 {who} 发起了该调用，并在其后的调用中等待"),
    ("{who} made its side of that call and waits", "{who} 发起了该调用中自己的一侧，正在等待"),
    ("its last call was {call}", "它的最后一次调用是 {call}"),
    ("last call of {who}: {call}, completed; nothing is pending there: its host stopped calling",
     "{who} 的最后一次调用 {call} 已完成，没有未完成的调用：主机进程停止发起调用"),
    ("last call of {who}: {call}, completed; nothing is pending there: their hosts stopped calling",
     "{who} 的最后一次调用 {call} 已完成，没有未完成的调用：主机进程停止发起调用"),
    ("nothing is pending on {who}: all that was called there has completed: {rest} stopped calling",
     "{who} 上没有未完成的调用，已发起的都已完成：主机进程停止发起调用"),
    ("not the network: every call that {who} made has completed", "不是网络：{who} 发起的每次调用都已完成"),
    ("not the host: {who} made the call", "不是主机：{who} 已发起该调用"),
    ("not the hosts: both ends made the call and started it", "不是主机：两端都已发起并开始该调用"),
    ("several of them stopped where nothing held them up, in the middle of what they were doing",
     "其中数个 rank 在没有任何等待的地方、在执行过程中停止"),
    ("after the calls that {who} made last, {a} always came; this time it called {b}, while its peers did as always", "{who} 最后几次调用之后历来是 {a}，这次却发起了 {b}，而同组其他 rank 照常"),
    ("the circle: {rest}", "循环：{rest}"),
    ("its peers have started {call}; there it was called and never started",
     "同组其他 rank 已开始 {call}；该 rank 发起后一直没有开始"),
    ("{n} of its peers completed {call}; there it started and never ended",
     "同组有 {n} 个 rank 已完成 {call}；该 rank 开始后一直没有结束"),
    ("{n} of its peers have completed {call}; there it never started",
     "同组有 {n} 个 rank 已完成 {call}；该 rank 一直没有开始"),
    ("{n} of its peers have completed {call}; there it was called and never completed",
     "同组有 {n} 个 rank 已完成 {call}；该 rank 发起后一直没有完成"),
    ("nothing is pending there before it: its host went on, its queue did not",
     "在它之前没有未完成的调用：主机继续前进，设备队列没有"),
    ("members of an all-to-all may pass different sizes, so sizes were not compared: a part sent in another size than it was awaited looks the same (TORCH_DISTRIBUTED_DEBUG=DETAIL compares them)",
     "ALL_TO_ALL 的各成员可以传入不同的大小，因此未比较大小：某一部分发送的大小与接收方期望的不同时，表现也是如此（TORCH_DISTRIBUTED_DEBUG=DETAIL 会比较大小）"),
    ("{call} was called by all and completed nowhere", "{call} 由所有 rank 发起，但没有一处完成"),
    ("{call} was in flight there and completed nowhere", "{call} 当时正在进行，没有一处完成"),
    ("{who} made fewer calls there than its peers, and stopped no earlier than they did",
     "{who} 在该处的调用少于同组其他 rank，而停止的时间并不更早"),
    ("its peers made calls for another {t}", "同组其他 rank 此后又发起了 {t} 的调用"),
    ("all {n} participants have called {call}, and none has completed it",
     "全部 {n} 个参与者都已发起 {call}，没有一个完成"),
    ("all {n} participants have started {call}, and none has completed it",
     "全部 {n} 个参与者都已开始 {call}，没有一个完成"),
    ("{call} started on all its members and ended on none: the network, or inside the kernel",
     "{call} 在所有成员上都已开始，没有一处结束：是网络，或在 kernel 内部"),
    ("NCCL pairs calls by their order alone: calls that differ hang or corrupt data",
     "NCCL 只按顺序匹配调用：不一致的调用会挂起或损坏数据"),
    ("{n} of the others wait in {call}", "其他 rank 中有 {n} 个在 {call} 中等待"),
    ("rank {a} waits for rank {b} in {call} (not called there)", "rank {a} 在 {call} 中等待 rank {b}（对方未发起）"),
    ("rank {a} waits for rank {b} in {call} (queued there behind an earlier call)",
     "rank {a} 在 {call} 中等待 rank {b}（对方排在更早的调用之后）"),
    ("rank {a} waits for rank {b} in {call} (called there, not started on its device)",
     "rank {a} 在 {call} 中等待 rank {b}（对方已发起，设备上未开始）"),
    ("rank {a} waits for rank {b} in {call} (nothing recorded there)",
     "rank {a} 在 {call} 中等待 rank {b}（对方没有记录）"),
    # ---- hangs: what to do
    ("save stacks (py-spy dump), kernel log and GPU state of {who} before the watchdog kills the job; then drain {x} and requeue from the last checkpoint.",
     "在 watchdog 终止作业之前，保存 {who} 的调用栈（py-spy dump）、内核日志和 GPU 状态；然后排空（drain）该节点，从最近的 checkpoint 重新提交作业。"),
    ("save stacks (py-spy dump), kernel log and GPU state of {who} before the watchdog kills the job; then test the path between these ranks and drain what fails.",
     "在 watchdog 终止作业之前，保存 {who} 的调用栈（py-spy dump）、内核日志和 GPU 状态；然后测试这些 rank 之间的链路，排空（drain）有故障的一方。"),
    ("save stacks (py-spy dump), kernel log and GPU state of {who} before the watchdog kills the job: stacks tell the members apart; record with completions next time.",
     "在 watchdog 终止作业之前，保存 {who} 的调用栈（py-spy dump）、内核日志和 GPU 状态：调用栈可以区分组内成员；下次请使用带完成时间的记录。"),
    ("Look at the code path that this rank took: its calls differ from its peers'. No hardware is suspected.",
     "检查该 rank 执行的代码路径：它的调用与同组其他 rank 不同。没有怀疑硬件。"),
    ("if nothing was written until TIME, the job stands", "如果直到 TIME 都没有新的记录，作业就是停住了"),
    ("on the nodes, twice: a stack that stays the same shows who stands",
     "在各节点上执行两次：两次相同的调用栈说明谁停住了"),
    ("on every node: the stacks tell at which call the job stands", "在每个节点上执行：调用栈说明作业停在哪个调用"),
    ("with the parallel layout, partners are known", "有了并行布局，就知道通信的对端"),
    ("with the logs of {who} added", "加上 {who} 的日志"),
    ("declares what the calls do not show", "声明从调用中看不出来的配置"),
    ("keeps the recordings, without personal data, to show to others", "保留这些记录（已去除个人信息），可以交给他人查看"),
    # ---- no hang, or not to be told
    ("no calls were recorded, so nothing can be said about a hang", "没有记录到任何调用，无法判断是否挂起"),
    ("{why}, but the recording ends in the middle of an iteration: cannot tell whether the job stands there or the recording was cut", "{why}，但记录在一次迭代中间结束：无法判断是作业停在那里，还是记录被截断"),
    ("no rank waits for a call that another rank has not made", "没有 rank 在等待其他 rank 未发起的调用"),
    ("{who} lacks only {call}, the last call of all others, and its log ends {t} before theirs: the end of a log, not a hang", "{who} 只缺少 {call}（其他 rank 的最后一次调用），且其日志比它们早 {t} 结束：这是日志的结尾，不是挂起"),
    ("the job stands: nobody made a call for {t}; but {why}, so the recording does not show at whom",
     "作业已停住：{t} 内没有任何 rank 发起调用；但{why}，因此记录看不出停在谁那里"),
    ("{who} may have stopped, but {why}: a hang and a cut recording look alike here",
     "{who} 可能已停止，但{why}：在这里挂起与记录被截断看起来一样"),
    ("the job stands ({why}), and {who} stopped first, at messages of which the log does not say with whom: the culprit may be the partner",
     "作业已停住（{why}），{who} 最先停止，停在日志没有写明对端的消息上：故障也可能在对端"),
    ("the job stands ({why}), and all wait for {who}, whose logs are missing",
     "作业已停住（{why}），所有 rank 都在等缺少日志的 {who}"),
    ("the recording ends {t} after the last call of rank {r}, within its usual time to the next call",
     "记录在 rank {r} 最后一次调用之后 {t} 结束，仍在它到下一次调用的通常间隔之内"),
    ("the recording ends {t} after the last call of rank {r}, which is too short to tell",
     "记录在 rank {r} 最后一次调用之后 {t} 结束，时间太短，无法判断"),
    ("{n} ranks were free to go on when the recording ended: the job was moving",
     "记录结束时有 {n} 个 rank 可以继续：作业当时在前进"),
    ("nothing shows who stopped first", "看不出谁最先停止"),
    # ---- slowness: the first sentence
    ("{what}, recovered", "{what}，已恢复"),
    ("{what}, still so at the end", "{what}，至记录结束仍未恢复"),
    ("{what}; as long as a healthy job may take, only an earlier run tells whether it is slow",
     "{what}；健康的作业也可能需要这么久，只有与更早的运行比较才知道是否变慢"),
    ("{what} {when}: iteration {a} → {b} s, {c} s of the job's time",
     "{what}，{when}：迭代时间 {a} → {b} s，作业损失 {c} s"),
    ("the whole job has been slow since its first iteration, no rank in particular: iteration {a} s, {b} s in the run of {x} ({p}×)",
     "整个作业从第一次迭代起就慢，没有哪个 rank 特别慢：迭代时间 {a} s，而 {x} 那次运行为 {b} s（{p} 倍）"),
    ("the whole job has been slow since its first iteration, no rank in particular: iteration {a} s is {p} % of the peak of {x}; such jobs take {b} s",
     "整个作业从第一次迭代起就慢，没有哪个 rank 特别慢：迭代时间 {a} s，相当于 {x} 峰值的 {p} %；同类作业需要 {b} s"),
    # ---- slowness: reasons
    ("work of its tensor group on stage {s}: {a} → {b} ms an iteration, waiting subtracted",
     "stage {s} 上其 TP 组的计算：每次迭代 {a} → {b} ms（已扣除等待）"),
    ("its own work: {a} → {b} ms an iteration, waiting subtracted", "自身的计算：每次迭代 {a} → {b} ms（已扣除等待）"),
    ("transfers from stage {s} to stage {t}: {a} → {b} ms an iteration, with both sides ready",
     "stage {s} 到 stage {t} 的传输：每次迭代 {a} → {b} ms（两端均已就绪）"),
    ("collectives of the group: {a} → {b} ms an iteration after the last member had come",
     "组内集合通信：最后一个成员到达之后，每次迭代 {a} → {b} ms"),
    ("gradient collectives of its data group took {a} ms longer, with every member there",
     "其 DP 组的梯度集合通信多用了 {a} ms（所有成员均已到达）"),
    ("came {a} ms after the other ranks of its stage to the calls before the first forward, {n} times",
     "在第一个前向之前的调用中比同 stage 的其他 rank 晚到 {a} ms，共 {n} 次"),
    ("{a} ms behind {who} through each block of calls, the latest in {p} % of {n} blocks ({b} ms outside)",
     "在每一段连续调用中比 {who} 落后 {a} ms，在 {n} 段中有 {p} % 最晚（其余时间 {b} ms）"),
    ("{a} ms behind {who} through each block of calls, the latest in {p} % of {n} blocks",
     "在每一段连续调用中比 {who} 落后 {a} ms，在 {n} 段中有 {p} % 最晚"),
    ("no member of the group is late consistently (the latest one in {p} % of {n} blocks)",
     "组内没有哪个成员始终最晚（最晚者在 {n} 段连续调用中占 {p} %）"),
    ("all of it lies before the iteration's first forward on stage {s}, which loads data",
     "全部发生在 stage {s} 的第一个前向之前，即加载数据之时"),
    ("slow paths to different peers have rank {r} in common", "通往不同对端的慢链路都以 rank {r} 为一端"),
    ("one path only: its two ends cannot be told apart without a second peer",
     "只有一条链路：没有第二个对端，无法区分是哪一端"),
    ("its host needed {x}× as long per call inside a block of calls", "其主机在连续调用中每次调用用时为原来的 {x} 倍"),
    ("its hosts needed {x}× as long per call inside a block of calls", "其主机在连续调用中每次调用用时为原来的 {x} 倍"),
    ("the host itself needed {x}× as long to make the calls of a block", "主机本身发起一段连续调用的用时为原来的 {x} 倍"),
    ("the other ranks only waited: their own work is within ±{p} % of normal",
     "其他 rank 只是在等待：它们自身的计算与平时相差不超过 ±{p} %"),
    ("all ranks stood still for {t} s between two iterations, {n} times", "所有 rank 在两次迭代之间停顿 {t} s，共 {n} 次"),
    ("all {n} places of stage {s} became {x}× as long together", "stage {s} 的全部 {n} 个位置一起变为原来的 {x} 倍"),
    ("all {n} places of stage {s} work {x}× as long as the median stage, in every iteration",
     "stage {s} 的全部 {n} 个位置在每次迭代中的计算时间都是中位 stage 的 {x} 倍"),
    ("all {n} places of stage {s} work {x}× as long as the median stage",
     "stage {s} 的全部 {n} 个位置的计算时间是中位 stage 的 {x} 倍"),
    ("stage {s} works {x}× as long as the median stage, in every iteration",
     "stage {s} 在每次迭代中的计算时间都是中位 stage 的 {x} 倍"),
    ("stage {s} works {x}× as long as the median stage", "stage {s} 的计算时间是中位 stage 的 {x} 倍"),
    ("{p} % of the places are slower at once", "{p} % 的位置同时变慢"),
    ("forward and backward of a micro-batch are long together on all stages, another replica every step; they spread by {p} %", "同一个 micro-batch 的前向和反向在所有 stage 上一起变长，且每步是不同的副本；离散程度 {p} %"),
    ("forwards and backwards of one rank spread by {p} %, on no rank in particular",
     "同一个 rank 的前向和反向时间离散 {p} %，没有哪个 rank 特别突出"),
    ("every member of a tensor group waits for another one at each collective, {p} % of its work",
     "TP 组的每个成员在每次集合通信中等待的都是不同的成员，占其计算的 {p} %"),
    ("another rank is the slowest every step ({a} ranks in {n} iterations)",
     "每一步最慢的都是不同的 rank（{n} 次迭代中有 {a} 个）"),
    ("no rank, path or stage is slower than the others", "没有哪个 rank、链路或 stage 比其他的慢"),
    # ---- slowness: what to do
    ("check the GPU for throttling, other processes and ECC errors (nvidia-smi -q -d PERFORMANCE,ECC); drain the node if it comes back",
     "检查该 GPU 是否降频、有无其他进程和 ECC 错误（nvidia-smi -q -d PERFORMANCE,ECC）；再次出现则排空（drain）该节点"),
    ("check the node's processors: other load, cgroup limits, frequency governor, swapping",
     "检查该节点的处理器：其他负载、cgroup 限制、调频策略、换页"),
    ("check the path's NICs, cables and switch ports for errors and a reduced link speed",
     "检查该链路的网卡、线缆和交换机端口：有无错误、是否降速"),
    ("check the storage that feeds the data loader and takes the checkpoints",
     "检查供数据加载和存放 checkpoint 的存储"),
    ("compare clocks, driver, NCCL environment and storage with a run that was fast",
     "与一次正常速度的运行比较时钟频率、驱动、NCCL 环境变量和存储"),
    ("rebalance: layers over the stages, or tokens over the micro-batches",
     "重新均衡：各 stage 的层数，或各 micro-batch 的 token 数"),
    ("look for noise on all hosts: garbage collection, daemons, frequency scaling",
     "在所有主机上查找干扰：垃圾回收、守护进程、调频"),
    ("compare GPU clocks and power limits, driver, NCCL version and environment, and batch settings with a run that was fast", "与一次正常速度的运行比较 GPU 时钟与功率限制、驱动、NCCL 版本与环境变量以及 batch 设置"),
    ("throttling and memory errors show here", "这里可以看到降频和显存错误"),
    ("other load on the node's processors", "该节点处理器上的其他负载"),
    ("link speed, error and congestion counters", "链路速率、错误与拥塞计数器"),
    ("waiting for the file system", "等待文件系统的时间"),
    # ---- nothing wrong, or not to be told
    ("nothing wrong found: {a} of {b} ranks, {n} iterations, usually {t} s, longest stage {x}× the median stage",
     "未发现异常：{b} 个 rank 中的 {a} 个，{n} 次迭代，通常 {t} s，最长的 stage 为中位 stage 的 {x} 倍"),
    ("nothing wrong found: {a} of {b} ranks, {n} iterations, usually {t} s",
     "未发现异常：{b} 个 rank 中的 {a} 个，{n} 次迭代，通常 {t} s"),
    ("nothing wrong found: {a} of {b} ranks, {n} iterations", "未发现异常：{b} 个 rank 中的 {a} 个，{n} 次迭代"),
    ("iterations {a}–{b} took {x}× as long as usual ({u} → {v} s), but {why}",
     "第 {a}–{b} 次迭代的时间是平时的 {x} 倍（{u} → {v} s），但{why}"),
    ("cannot tell who: {a} of {b} or more ranks seen, and their parallel layout does not show; the logs of {who} are missing", "无法判断是谁：在至少 {b} 个 rank 中看到 {a} 个，看不出并行布局；缺少 {who} 的日志"),
    ("cannot tell who: {a} of {b} or more ranks seen, and their parallel layout does not show",
     "无法判断是谁：在至少 {b} 个 rank 中看到 {a} 个，看不出并行布局"),
    ("cannot tell why: {why}", "无法判断原因：{why}"),
    ("cannot tell: the calls of {n} rank show no repeating iteration; recordings of three whole iterations or more are needed", "无法判断：{n} 个 rank 的调用看不出重复的迭代；需要三次以上完整迭代的记录"),
    ("cannot tell: the calls of {n} ranks show no repeating iteration; recordings of three whole iterations or more are needed", "无法判断：{n} 个 rank 的调用看不出重复的迭代；需要三次以上完整迭代的记录"),
    ("cannot tell: no whole iteration was seen; collect for longer", "无法判断：没有看到完整的迭代；请采集更长时间"),
    ("no rank's own work, transfers or calls were longer", "没有哪个 rank 自身的计算、传输或调用变长"),
    ("host times alone show no rank that was slower than the others: record start and end times",
     "仅凭主机时间看不出哪个 rank 比其他的慢：请记录开始与结束时间"),
    ("no host was late, all {n} iterations of about {t} s, but cannot tell whether a device or a path is slow: every host of a data-parallel job waits for all; record start and end times",
     "没有主机晚到，{n} 次迭代均约 {t} s，但无法判断是否有设备或链路变慢：数据并行作业的每个主机都在等所有其他主机；请记录开始与结束时间"),
    ("own past + peers", "自身的过去与同组其他 rank"),
    ("own past", "自身的过去"),
    ("{a}; not with what the model should take ({why})", "{a}；没有与该模型应有的时间比较（{why}）"),
    # ---- notes on inputs
    ("{what} {t} s before the others', which went on for iterations: cut, not stopped",
     "{what}比其他的早 {t} s，而其他日志又继续了数次迭代：是被截断，不是停止"),
    ("the log of rank {r} ends", "rank {r} 的日志结束时间"),
    ("the logs of ranks {r} end", "rank {r} 的日志结束时间"),
    ("{n} lines of {who} stood twice and were taken once.", "{who} 有 {n} 行重复出现，只计一次。"),
    ("{n} lines of {who} stood out of order in time and were sorted.", "{who} 有 {n} 行时间顺序不对，已重新排序。"),
    ("{file} line {n} is cut off (the process was killed while writing); {m} lines read.",
     "{file} 第 {n} 行被截断（进程在写入时被终止）；已读入 {m} 行。"),
    ("{file} is empty: nothing was recorded there.", "{file} 为空：没有任何记录。"),
)  # fmt: skip
"""Complete sentences first, then what may stand in them; the first that fits is taken."""

_PHRASES: tuple[tuple[str, str], ...] = (
    ("one of {who}", "{who} 之一"),
    ("{a} of {n} elements where the others called {b} of {m}", "{n} 个元素的 {a}，而其他 rank 发起 {m} 个元素的 {b}"),
    ("{who} made their calls {x}× slower", "{who} 发起调用的用时为平时的 {x} 倍"),
    ("{who} made its calls {x}× slower", "{who} 发起调用的用时为平时的 {x} 倍"),
    ("{who} made their calls slower", "{who} 发起调用变慢"),
    ("{who} made its calls slower", "{who} 发起调用变慢"),
    ("{who} computed {x}× slower", "{who} 计算用时为平时的 {x} 倍"),
    ("{who} computed slower", "{who} 计算变慢"),
    ("{who} exchanged data slower", "{who} 的数据传输变慢"),
    ("{who} was slower", "{who}变慢"),
    ("{who} came late to the first call of the iteration (data loading or checkpoint)",
     "{who} 迟到于迭代的第一次调用（数据加载或 checkpoint）"),
    ("the path between {a} and {b}", "{a} 与 {b} 之间的链路"),
    ("stage {s} is longer than the others", "stage {s} 比其他 stage 长"),
    ("micro-batches are uneven", "各 micro-batch 不均匀"),
    ("all ranks are scattered, none in particular", "所有 rank 的时间都离散，没有哪个特别突出"),
    ("the whole job became slower at once, no rank in particular", "整个作业同时变慢，没有哪个 rank 特别突出"),
    ("no rank in particular: the whole job stood still between iterations (checkpoint)",
     "没有哪个 rank 特别突出：整个作业在两次迭代之间停顿（checkpoint）"),
    ("now and then between iterations {a} and {b}", "第 {a} 至 {b} 次迭代之间时有时无"),
    ("in iterations {a}–{b}", "第 {a}–{b} 次迭代"),
    ("in iteration {a}", "第 {a} 次迭代"),
    ("forward of micro-batch {m}", "micro-batch {m} 的前向"),
    ("backward of micro-batch {m}", "micro-batch {m} 的反向"),
    ("forward", "前向"),
    ("backward", "反向"),
    ("sync", "梯度同步"),
    ("its node", "该节点"),
    ("their nodes", "相关节点"),
    ("its last call", "它的最后一次调用"),
    ("the world group", "world 组"),
    ("the group of {who}", "{who} 组成的组"),
    ("the Send from rank {a} to rank {b}", "rank {a} 发往 rank {b} 的 Send"),
    ("Recv from rank {a}", "来自 rank {a} 的 Recv"),
    ("Send to rank {a}", "发往 rank {a} 的 Send"),
    ("{a}, which waits for {b}", "{a}，等待 {b}"),
    ("rank {r} in {call}", "rank {r}（在 {call} 中）"),
    ("rank {r} never posted {call}", "rank {r} 一直没有发起 {call}"),
    ("rank {r} at {call}; {rest}", "rank {r} 停在 {call}；{rest}"),
    ("rank {r} at {call}", "rank {r} 停在 {call}"),
    ("group {name}", "组 {name}"),
    ("{axis} group {g} of stage {s} ({who})", "stage {s} 的 {axis} 组 {g}（{who}）"),
    ("{axis} group {g} of stage {s}", "stage {s} 的 {axis} 组 {g}"),
    ("{op} #{n} of {comm}", "{comm} 的 {op} #{n}"),
    ("{node} (ranks {r})", "{node}（rank {r}）"),
    ("ranks {r}", "rank {r}"),
    *XID_MEANINGS,
    *MACHINE_PHRASES,
    *LOG_PHRASES,
)  # fmt: skip

SENTENCES = (*_SENTENCES, *STATES, *LOGS, *MACHINES, *REMEDIES, *XID_REMEDIES)

_NAMES = {"axis": "[A-Z]{2,5}", "op": "[A-Z_]+", "n": "[0-9,.]+", "m": "[0-9,.]+", "k": r"\d+", "s": r"\d+",
          "when": "(?:now and then between|in) iterations? .+?", "g": r"\d+", "p": r"[\d.,]+", "x": r".+?", "dev": r"(?:GPU|port|NIC|NVSwitch|disk|PCIe|hca|mlx|rank|task)[^;]*?", "host": r"[\w.-]+",
          "bare": "[^()]+?", "grp": r"[^()]+?(?: \([^()]+\))?", "q": "[^()]+", "r": r"[\d ,–-]+", "t": r"[\d.,]+(?: \w+)*?"}  # fmt: skip
"""What may stand in holes of these names; in others anything."""
_BETWEEN = re.compile("(?<=[\u4e00-\u9fff\uff00-\uffef]) (?=[\u4e00-\u9fff])")
"""A blank between two Chinese characters, which comes from a hole that was filled with Chinese."""
_QUOTED = re.compile(r'"[^"]*"')
_PROSE = re.compile(
    r"\b(?:the|of|in|was|were|is|are|has|have|its|their|for|that|and|with|which|called|stopped|slower|to)\b"
)
"""Words without which there is no English sentence; names of hosts, calls and commands have none of them."""


def translated(text: str) -> str | None:
    """The sentence in Chinese, None where no pattern fits."""
    return _translated(text)


@lru_cache(maxsize=4096)
def _translated(text: str) -> str | None:
    return _filled(SENTENCES, text)


def phrase(text: str) -> str:
    """What stands in a hole: translated where it is a phrase, as it is where it is a name or a number."""
    found = _translated(text) if " " in text else None
    return found or _filled(_PHRASES, text) or text


def _filled(pairs: tuple[tuple[str, str], ...], text: str) -> str | None:
    """The first pattern that fits, its holes filled; one in which English prose would be left does not fit."""
    for pattern, chinese in _compiled(pairs):
        match = pattern.fullmatch(text)
        if match is None:
            continue
        found = match.groupdict()
        values = {key: value if key == "said" else phrase(value) for key, value in found.items()}
        if "r" in values:
            values["r"] = values["r"].replace(", ", "、")
        made = _BETWEEN.sub("", chinese.format(**values))
        # What a log printed may be English, and what nobody translates is told by prose outside of it.
        own = made.replace(found["said"], "") if found.get("said") else made
        if not _PROSE.search(_QUOTED.sub("", own)):
            return made
    return None


@lru_cache(maxsize=2)
def _compiled(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((_pattern(english), chinese) for english, chinese in pairs)


def _pattern(english: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", english)
    body = "".join(
        re.escape(part) if index % 2 == 0 else f"(?P<{part}>{_NAMES.get(part, '.+?')})"
        for index, part in enumerate(parts)
    )
    return re.compile(body, re.DOTALL)
