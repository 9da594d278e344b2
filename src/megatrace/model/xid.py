"""NVIDIA's Xid codes as data: what a code means, whose fault it is, what to do with the GPU.

The numbers and their standing (restart the application, reset the GPU, reboot, ask the vendor) are facts of
NVIDIA's Xid catalogue for current GPUs, told in our own words; the ``action`` is what operators of clusters
do about it. A code that is not in the table is unused on current GPUs: it is shown, and the vendor asked.

Does not judge a log: what follows from what is ``analysis``' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from megatrace.model.finding import Severity


class Action(Enum):
    """What is done with the GPU and its node, from least to most."""

    OBSERVE = "record it; no action"
    RESTART_APP = "fix or restart the application; the GPU stays in service"
    RESET_LATER = "let the job finish, then reset the GPU (nvidia-smi --gpu-reset) or reboot"
    CHECK_SYSTEM = "check driver, firmware and configuration of the node"
    RESET = "drain the node and reset the GPU (nvidia-smi --gpu-reset); reboot if the reset fails"
    REBOOT = "drain the node and reboot it"
    POWER_CYCLE = "drain the node and power-cycle it cold; reseat or replace (RMA) the GPU if it comes back"
    REPLACE = "drain the node and open a replacement case (RMA) for the GPU"


class Blame(Enum):
    """Where the fault usually lies."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    DRIVER = "driver"
    CONSEQUENCE = "consequence"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Xid:
    """One code. ``said`` is a word of the driver's message by which a line of this code is known."""

    code: int
    meaning: str
    action: Action
    severity: Severity
    blame: Blame
    said: str = ""


_A, _H, _D, _C, _N = Blame.APPLICATION, Blame.HARDWARE, Blame.DRIVER, Blame.CONSEQUENCE, Blame.NOTHING
_P0, _P1, _P2, _P3 = Severity.P0, Severity.P1, Severity.P2, Severity.P3

_ROWS = (
    Xid(8, "the GPU stopped processing (FIFO idle timeout)", Action.RESTART_APP, _P2, _A),
    Xid(
        13,
        "graphics engine exception (a kernel of the application)",
        Action.RESTART_APP,
        _P2,
        _A,
        "Exception",
    ),
    Xid(
        31, "GPU memory page fault (MMU fault: an illegal address)", Action.RESTART_APP, _P2, _A, "MMU Fault"
    ),
    Xid(37, "driver firmware error", Action.OBSERVE, _P3, _D),
    Xid(38, "driver firmware error", Action.OBSERVE, _P3, _D),
    Xid(
        43, "the GPU stopped processing (channel reset of a failed application)", Action.RESTART_APP, _P3, _C
    ),
    Xid(44, "graphics engine fault during a context switch", Action.OBSERVE, _P2, _D),
    Xid(45, "preemptive cleanup after an earlier error or a killed process", Action.OBSERVE, _P3, _C),
    Xid(46, "the GPU stopped processing (timeout)", Action.RESET, _P1, _H),
    Xid(48, "double-bit ECC error: GPU memory is corrupted", Action.RESET, _P0, _H, "(DBE|[Dd]ouble)"),
    Xid(54, "auxiliary power is not connected to the GPU board", Action.REPLACE, _P1, _H),
    Xid(60, "video processor exception", Action.RESTART_APP, _P3, _A),
    Xid(62, "the GPU's internal micro-controller halted", Action.RESET, _P0, _H),
    Xid(
        63,
        "a memory row was marked for remapping (or a page for retirement)",
        Action.RESET_LATER,
        _P2,
        _H,
        "[Rr]emap",
    ),
    Xid(64, "row remapping (or page retirement) failed", Action.REPLACE, _P0, _H, "[Ff]ail"),
    Xid(66, "illegal access by the driver", Action.OBSERVE, _P3, _D),
    Xid(67, "illegal access by the driver", Action.OBSERVE, _P3, _D),
    Xid(69, "graphics engine class error", Action.RESTART_APP, _P3, _A),
    Xid(74, "NVLink error", Action.RESET, _P0, _H, "[Nn][Vv][Ll]ink"),
    Xid(78, "vGPU start error", Action.CHECK_SYSTEM, _P2, _D),
    Xid(79, "the GPU has fallen off the bus", Action.POWER_CYCLE, _P0, _H, "fallen off"),
    Xid(92, "high rate of single-bit ECC errors", Action.OBSERVE, _P2, _H),
    Xid(93, "the InfoROM's wear limit is exceeded", Action.OBSERVE, _P3, _H),
    Xid(94, "contained memory error: one application was hit", Action.RESET_LATER, _P1, _H, "[Cc]ontained"),
    Xid(95, "uncontained memory error: every job on the GPU is hit", Action.RESET, _P0, _H, "[Uu]ncontained"),
    Xid(106, "a test message of the management bus", Action.OBSERVE, _P3, _N),
    Xid(107, "a test message of the management bus", Action.OBSERVE, _P3, _N),
    Xid(109, "context switch timeout", Action.RESET, _P1, _H, "(CTX|[Cc]ontext)"),
    Xid(110, "security fault", Action.RESET, _P1, _D),
    Xid(
        119, "GSP RPC timeout: the GPU's system processor does not answer", Action.RESET, _P0, _H, "(GSP|RPC)"
    ),
    Xid(120, "GSP error: the GPU's system processor failed", Action.RESET, _P0, _H, "GSP"),
    Xid(121, "C2C link error", Action.OBSERVE, _P2, _H),
    Xid(136, "NVLink training failed", Action.RESET, _P1, _H),
    Xid(
        137,
        "NVLink privilege error (often a consequence of a fault on a peer GPU)",
        Action.OBSERVE,
        _P2,
        _C,
        "PRIV",
    ),
    Xid(140, "unrecovered ECC error", Action.RESET, _P0, _H),
    Xid(141, "CUDA fast path error", Action.OBSERVE, _P3, _D),
    Xid(142, "video encoder error", Action.OBSERVE, _P3, _D),
    Xid(143, "GPU initialization error", Action.RESET, _P0, _H),
    Xid(151, "key rotation error", Action.REBOOT, _P1, _D),
    Xid(152, "DLA memory management error", Action.OBSERVE, _P3, _D),
    Xid(153, "DLA timeout", Action.OBSERVE, _P3, _D),
    Xid(154, "the GPU's recovery action changed", Action.OBSERVE, _P2, _C, "[Rr]ecovery"),
    Xid(155, "NVLink error defined by software", Action.RESET, _P1, _H),
    Xid(156, "a resource of the GPU was retired", Action.RESET, _P1, _H),
    Xid(157, "retiring a resource of the GPU failed", Action.REPLACE, _P1, _H),
    Xid(158, "fatal timeout of the GPU", Action.RESET, _P0, _H),
    Xid(159, "CHI non-data error", Action.OBSERVE, _P2, _H),
    Xid(160, "a channel was retired", Action.OBSERVE, _P2, _H),
    Xid(161, "retiring a channel failed", Action.OBSERVE, _P2, _H),
    Xid(162, "power smoothing hardware is engaged again", Action.OBSERVE, _P3, _N),
    Xid(163, "power smoothing hardware is disengaged", Action.OBSERVE, _P3, _N),
    Xid(164, "power smoothing hardware has little lifetime left", Action.OBSERVE, _P3, _H),
    Xid(165, "power smoothing hardware is at the end of its lifetime", Action.OBSERVE, _P3, _H),
    Xid(166, "NVLink traffic before encryption was set up", Action.OBSERVE, _P2, _D),
    Xid(167, "fatal PCIe timeout", Action.POWER_CYCLE, _P0, _H),
    Xid(168, "errors in the protected memory region: less GPU memory", Action.REPLACE, _P1, _H),
    Xid(169, "the security micro-controller halted", Action.RESET, _P0, _H),
    Xid(170, "NVLink interrupt in confidential-computing mode", Action.OBSERVE, _P2, _D),
    Xid(171, "uncorrectable DRAM error (detail of Xid 48)", Action.RESET, _P0, _H),
    Xid(172, "uncorrectable SRAM error (detail of Xid 48)", Action.RESET, _P0, _H),
)
_PUSH_BUFFER = (11, 25, 32, 80)
_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_MEDIA = (68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)
_NVLINK5 = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW", 149: "NETIR", 150: "MSE"}


def _table() -> dict[int, Xid]:
    table = {row.code: row for row in _ROWS}
    for code in _PUSH_BUFFER:
        table[code] = Xid(code, "invalid or corrupted push buffer", Action.RESTART_APP, _P3, _A)
    for code in _COPY_ENGINES:
        table[code] = Xid(code, "copy engine exception", Action.RESTART_APP, _P2, _A)
    for code in _MEDIA:
        table[code] = Xid(code, "video or image engine exception", Action.RESTART_APP, _P3, _A)
    for code, unit in _NVLINK5.items():
        table[code] = Xid(code, f"NVLink error in unit {unit}", Action.RESET, _P1, _H, unit)
    return table


XIDS = _table()
"""The codes that have a meaning on current GPUs."""
NVLINK_XIDS = frozenset({74, 121, 136, 137, 155, 166, 170, *_NVLINK5})
"""Codes of the links between GPUs: one broken link shows them on both sides."""
SYMPATHETIC = frozenset({43, 45, 137, 154})
"""Codes that follow from another one, on the same GPU or a peer."""

_ROOTS = frozenset({row.code for row in _ROWS if row.blame is Blame.HARDWARE and row.severity <= _P1})
FOLLOWS: dict[int, frozenset[int]] = {
    **dict.fromkeys((43, 45), frozenset({43, 45, 137})),
    **dict.fromkeys(_ROOTS - NVLINK_XIDS, SYMPATHETIC),
    **dict.fromkeys({*NVLINK_XIDS, 79, 167}, NVLINK_XIDS | SYMPATHETIC),
}
"""What a code on one GPU brings about on *other* GPUs of the same node, within a minute. Only this is folded
into one incident across GPUs: a lost GPU breaks the links of its peers, but never makes them fall off the
bus; so a second dead GPU is a second incident."""


def xid(code: int) -> Xid:
    """What a code means; for one that is not used on current GPUs, that it is not."""
    known = XIDS.get(code)
    if known is not None:
        return known
    meaning = "a code without a published meaning on current GPUs"
    return Xid(code, meaning, Action.OBSERVE, Severity.P2, Blame.DRIVER)
