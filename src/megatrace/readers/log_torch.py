"""Lines of torch.distributed: watchdog, desync report, heartbeat, fingerprints, rendezvous store.

Wordings from PyTorch 1.13 to 2.10. "[Rank 1]" inside a watchdog line is the rank in the process group; the global
rank stands in the prefix of newer versions ("[rank13]:"). What is the group's rank alone is kept as ``group_rank``.
"""

from __future__ import annotations

import re
from dataclasses import replace

from megatrace.model.series import FactKind, LogFact, Value
from megatrace.readers.log_clean import Line
from megatrace.readers.log_pattern import Table, fact_of, pattern, value

_K = FactKind
_WORK = r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, (?:TensorShape=\[(?P<shape>[^\]]*)\]|NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+)))?(?:, Timeout\(ms\)=(?P<timeout_ms>\d+))?\)"
_PG = r"\[PG (?:ID (?P<pg_id>\d+) )?(?:PG )?(?:GUID )?(?P<pg>\d+)?(?:\((?P<pg_name>[^)]*)\))?(?: ?\((?P<pg_desc>[^)]*)\))? ?Rank (?P<group_rank>\d+)\]"
_OWN = r"(?:\[(?:Global )?Rank (?P<own_rank>\d+)\] )?"
_PROGRESS = r"(?:last enqueued(?: NCCL)? work: (?P<enqueued>-?\d+))?(?:, last started(?: NCCL)? work: (?P<started>-?\d+))?(?:, last completed(?: NCCL)? work: (?P<completed>-?\d+))?"
PATTERNS = (
    pattern(_K.EXCEPTION, "cuda", "watchdog thread terminated with exception: CUDA", rf"(?:{_PG} ?|{_OWN})(?:Process group|NCCL) watchdog thread terminated with exception: (?P<detail>CUDA error: .*)"),
    pattern(_K.WATCHDOG, "timeout", "Watchdog caught collective operation timeout", rf"{_OWN}(?:{_PG} ?)?Watchdog caught collective operation timeout: {_WORK} ran for (?P<ran_ms>\d+) milliseconds"),
    pattern(_K.WATCHDOG, "timeout", "Caught collective operation timeout", rf"{_OWN}Caught collective operation timeout: {_WORK} ran for (?P<ran_ms>\d+) milliseconds"),
    pattern(_K.WATCHDOG, "timeout", "Watchdog caught collective operation timeout", rf"{_OWN}Watchdog caught collective operation timeout: {_WORK}"),
    pattern(_K.WATCHDOG, "position", "watchdog at work", rf"{_PG} *Exception \(either an error or timeout\) detected by watchdog at work: (?P<seq>\d+)(?: sequence.*?)?, {_PROGRESS}"),
    pattern(_K.WATCHDOG, "position", "Timeout at NCCL work", rf"{_PG} *Timeout at NCCL work: (?P<seq>\d+), {_PROGRESS}"),
    pattern(_K.WATCHDOG, "position", "failure detected by watchdog at work sequence", rf"{_PG} *failure detected by watchdog at work sequence id: (?P<seq>\d+)(?: PG status: {_PROGRESS})?"),
    pattern(_K.WATCHDOG, "position", "ast enqueued", rf"{_PG} *.*?{_PROGRESS}"),
    pattern(_K.WATCHDOG, "stack", "Stack trace of the failed collective", r"(?P<detail>Stack trace of the failed collective.*)"),
    pattern(_K.WATCHDOG, "heartbeat", "heartbeat", r"(?:\[Global Rank (?P<rank>\d+)\]|\[Rank (?P<group_rank>\d+)\])?.*?(?P<detail>(?:Heartbeat monitor timed out|watchdog.*(?:got stuck|stuck for)|heartbeat).*)"),
    pattern(_K.WATCHDOG, "stuck", "watchdog got stuck", r"watchdog got stuck for (?P<seconds>\d+) ?(?:seconds|s)"),
    pattern(_K.WATCHDOG, "gil", "GIL", r"(?P<detail>(?:Could not acquire GIL|GIL checker).*)"),
    pattern(_K.WATCHDOG, "observed", "Observed flight recorder dump signal", r"(?P<detail>Observed flight recorder dump signal from (?:another|rank (?P<from_rank>\d+)).*)"),
    pattern(_K.WATCHDOG, "first_signal", "dump signal", r"(?P<detail>Received a (?:global )?(?:timeout|dump) signal.*?(?:from rank (?P<from_rank>\d+)|from this local rank)?.*)"),
    pattern(_K.WATCHDOG, "first_signal", "Received a ", r"\[PG ID.*?Received a (?:dump|global) signal due to (?P<detail>.*?) from (?:this local )?rank(?: (?P<from_rank>\d+))?"),
    pattern(_K.WATCHDOG, "desync", "joined but didn't finish collective", r"\[(?P<who>[\d, ]+)\] joined but didn't finish collective #(?P<seq>\d+)"),
    pattern(_K.WATCHDOG, "absent", "didn't join collective", r"\[(?P<who>[\d, ]+)\] finished collective #(?P<finished>\d+), but didn't join collective #(?P<seq>\d+)"),
    pattern(_K.WATCHDOG, "barrier_absent", "monitoredBarrier", r"Rank(?:\(s\))? (?P<who>[\d, ]+) failed to pass monitoredBarrier in (?P<ran_ms>\d+) ?ms"),
    pattern(_K.WATCHDOG, "barrier_peer", "monitoredBarrier", r"Rank (?P<reporter>\d+) successfully reached monitoredBarrier, but received errors while waiting (?:for|to).*?(?:from|to)? ?rank (?P<who>\d+)"),
    pattern(_K.WATCHDOG, "barrier_peer", "monitoredBarrier", r"(?P<detail>.*monitoredBarrier.*(?:timed out|failed|error).*)"),
    pattern(_K.WATCHDOG, "after", "Some NCCL operations have failed or timed out", r"(?P<detail>Some NCCL operations)"),
    pattern(_K.WATCHDOG, "after", "taking the entire process down", r"(?P<detail>taking the entire process down)"),
    pattern(_K.WATCHDOG, "gloo_timeout", "gloo", r"(?P<detail>(?:Timed out waiting|Application timeout caused pair closure|Timeout).*)"),
    pattern(_K.NETWORK_ERROR, "peer_gone", "gloo", r"gloo/transport.*?(?P<detail>Connection closed by peer|Read error|Broken pipe|Connection reset|Connection refused|connect).*?(?:\[(?P<peer>[\d.a-f:]+)\])?"),
    pattern(_K.STORE, "waiting", "clients joined", r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<expected>\d+) clients joined"),
    pattern(_K.STORE, "store_timeout", "wait timeout after", r"wait timeout after (?P<ms>\d+) ?ms, keys: (?P<keys>\S+)"),
    pattern(_K.STORE, "store_lost", "store->get(", r"(?P<detail>store->get\(.*?\) got error: .*)"),
    pattern(_K.STORE, "store_timeout", "Socket Timeout", r"(?P<detail>Socket Timeout)"),
    pattern(_K.STORE, "store_lost", "TCPStore", r"(?P<detail>(?:Connection was likely closed|Broken pipe|Connection reset|failed to (?:recv|send|connect)|has the server shut down|server may have).*)"),
    pattern(_K.STORE, "store_connect", "The client socket has", r"(?P<detail>The client socket has (?:failed to connect|timed out).*?(?:\((?P<peer>[^)]*)\))?)"),
    pattern(_K.STORE, "address_in_use", "ddress already in use", r"(?P<detail>.*[Aa]ddress already in use.*)"),
    pattern(_K.STORE, "rendezvous", "Rendezvous", r"(?P<detail>(?:RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError|Rendezvous.*(?:timed out|failed)).*)"),
)  # fmt: skip
_PRINT = re.compile(
    r"Rank (?P<rank_a>\d+) is running (?:inconsistent )?collective: CollectiveFingerPrint\((?P<a>.*?)(?:, but Rank (?P<rank_b>\d+) is running (?:inconsistent )?collective: CollectiveFingerPrint\((?P<b>.*?))?(?:\.?Collectives differ in the following aspects: *(?P<aspects>.*))?$",
    re.ASCII,
)
_NEEDLE = "CollectiveFingerPrint"


class Torch:
    """See the module."""

    needles: tuple[str, ...] = tuple(dict.fromkeys([_NEEDLE, *(p.needle for p in PATTERNS)]))

    def __init__(self) -> None:
        self._table = Table(PATTERNS)

    @property
    def open(self) -> bool:
        """Never: each line stands alone."""
        return False

    def feed(self, line: Line) -> list[LogFact]:
        """One fact a line."""
        if _NEEDLE in line.text:
            return [_fingerprints(line)]
        facts = self._table.feed(line)
        return [_with_pair(fact, line) for fact in facts if not _empty(fact)]

    def flush(self) -> list[LogFact]:
        """Nothing is held back."""
        return []


def _empty(fact: LogFact) -> bool:
    """A line about last enqueued work that holds no number of it."""
    return fact.name == "position" and fact.get("completed") is None and fact.get("seq") is None


def _with_pair(fact: LogFact, line: Line) -> LogFact:
    """A watchdog without a prefix of rank: before 2.2 "[Rank 3]" was the rank in the default group."""
    old = re.search(r"\[Global Rank (\d+)\]", line.text, re.ASCII)
    return replace(fact, rank=int(old[1])) if old is not None else fact


def _fingerprints(line: Line) -> LogFact:
    match = _PRINT.search(line.text)
    if match is None:
        return fact_of(line, _K.FINGERPRINT, "mismatch", {})
    more: dict[str, Value] = {"rank_a": int(match["rank_a"])}
    more.update({f"{key}_a": item for key, item in _parts(match["a"]).items()})
    if match["rank_b"] is not None:
        more["rank_b"] = int(match["rank_b"])
        more.update({f"{key}_b": item for key, item in _parts(match["b"]).items()})
    else:
        more["cut"] = "yes"
    if match["aspects"]:
        more["aspects"] = match["aspects"][:400]
    return fact_of(line, _K.FINGERPRINT, "mismatch", {}, **more)


def _parts(text: str) -> dict[str, Value]:
    """Sequence number, operation, shape and type of one fingerprint; older ones lack the comma between."""
    found: dict[str, Value] = {}
    for key, form in (
        ("seq", r"SequenceNumber=(\d+)"), ("op", r"OpType=(\w+)"), ("shape", r"TensorShape=\[([^\]]*)\]"),
        ("dtype", r"TensorDtypes=(\w+)"),
    ):  # fmt: skip
        match = re.search(form, text, re.ASCII)
        if match is not None:
            found[key] = match[1] if key == "shape" else value(match[1])
    if "TensorShape" not in text and "OpType" in text:
        found["zeroed"] = "yes"
    return found
