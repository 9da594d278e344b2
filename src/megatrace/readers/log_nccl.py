"""Lines that NCCL writes with NCCL_DEBUG=WARN or INFO: calls, completions with an error, sockets, set-up.

Completion errors of the InfiniBand transport have had five wordings since 2.4; the peer may be IPv4, IPv6 with a
scope, or masked. opCount is hexadecimal. Communicator pointers differ from process to process.
"""

from __future__ import annotations

import re
from dataclasses import replace

from megatrace.model.series import FactKind, LogFact
from megatrace.readers.log_clean import Line, at
from megatrace.readers.log_pattern import Pattern, Table, fact_of, pattern

_K = FactKind
_PEER = r"(?P<peer>[^\s<]+(?:<\w+>)?)"
_NET = (
    pattern(_K.NETWORK_ERROR, "completion", "Got completion", r"Got completion (?:from peer " + _PEER + r" )?with status=\w+\((?P<status>\d+)\) opcode=\w+\((?P<opcode>\d+)\).*?vendor_err=(?P<vendor>\d+)(?:.*?req_type=(?P<direction>\w+))?(?:.*?localGid (?P<local_gid>\S+))?(?:.*?remoteGids? ?(?P<remote_gid>\S+))?(?:.*?hca (?P<hca>\w+))?"),
    pattern(_K.NETWORK_ERROR, "completion", "Got completion", r"NET/IB ?: (?:\S+:\d+ )?Got completion (?:from peer " + _PEER + r" )?with (?:error|status=|status)[ =]?(?P<status>\d+),? opcode[ =]?(?P<opcode>\d+),? (?:len|byte_len)[ =]?(?P<length>\d+),? vendor err[ =]?(?P<vendor>\d+)(?: \((?P<direction>\w+)\))?(?:.*?localGid (?P<local_gid>\S+))?(?:.*?remoteGids? ?(?P<remote_gid>\S+))?(?:.*?hca (?P<hca>\w+))?"),
    pattern(_K.NETWORK_ERROR, "completion", "Got completion", r"Got completion (?:from peer " + _PEER + r" )?.*?(?:status|error)[ =]*(?P<status>\d+)"),
    pattern(_K.NCCL, "size_mismatch", "collective mismatch", r"peer " + _PEER + r".*local size (?P<local_size>\d+) remote (?:size )?(?P<remote_size>\d+)"),
    pattern(_K.NCCL, "truncated", "truncated", r"truncated ?:? ?recei(?:ved|ving) (?P<received>\d+) bytes instead of (?P<expected>\d+)"),
    pattern(_K.NETWORK_ERROR, "async_event", "async", r"NET/IB ?: (?:(?P<hca>mlx\w+):(?P<hca_port>\d+) )?Got async (?:fatal |error )?event ?:? ?(?P<event>.*)"),
    pattern(_K.NETWORK_ERROR, "qp_failed", "ibv_modify_qp", r"Call to ibv_modify_qp failed(?: with)?(?: error)? ?(?P<detail>[^,\n]*?)(?: errno (?P<errno>\d+))?(?:,? on dev (?P<hca>\w+):(?P<hca_port>\d+).*)?$"),
    pattern(_K.NCCL, "registration", "ibv_reg_", r"Call to ibv_reg_(?:mr|dmabuf)\w* failed(?: with)?(?: error)? ?(?P<detail>.*)"),
    pattern(_K.NCCL, "verbs", "Call to ibv_", r"Call to (?P<call>ibv_\w+) failed(?: with)?(?: error)? ?(?P<detail>.*)"),
    pattern(_K.NETWORK_ERROR, "wqe_stall", "WQE stall", r"WQE stall \(no CQE\): peer=" + _PEER + r"(?:.*?dev=(?P<hca>\w+))?(?:.*?qpn=(?P<qpn>\w+))?(?:.*?age=(?P<age_ns>\d+) ?ns)?(?:.*?inflight=(?P<inflight>\d+))?"),
    pattern(_K.NETWORK_ERROR, "wqe_slow", "WQE slow", r"WQE slow: peer=" + _PEER + r"(?:.*?dev=(?P<hca>\w+))?(?:.*?(?:lat|latency|age|took)=(?P<age_ns>\d+))?"),
    pattern(_K.NETWORK_ERROR, "wqe_summary", "WQE latency summary", r"WQE latency summary \[.*?peer=" + _PEER + r"(?:.*?dev=(?P<hca>\w+))?.*?n=(?P<count>\d+) slow=(?P<slow>\d+).*?mean=?(?P<mean>[\d.]+).*?p99=?(?P<p99>[\d.]+).*?max=?(?P<max>[\d.]+)"),
    pattern(_K.NETWORK_ERROR, "socket", "Call to ", r"Call to (?P<call>recv|send|connect|accept|bind|listen|poll|write|read|getsockopt)\w* (?:(?:from|to) )?(?:" + _PEER + r" )?failed ?:? ?(?:with error )?(?P<detail>.*)"),
    pattern(_K.NETWORK_ERROR, "socket", "onnect to ", r"(?:socket\w*|ncclSocketConnect|Net ?): ?(?:C|c)onnect to " + _PEER + r" (?:failed|returned|timed out) ?:? ?(?P<detail>.*)"),
    pattern(_K.NETWORK_ERROR, "peer_gone", "Connection closed by remote peer", r"Connection closed by remote peer ?(?P<peer>\S*)"),
    pattern(_K.NETWORK_ERROR, "peer_gone", "Connection closed by localRank", r"Connection closed by localRank (?P<local_peer>\d+)"),
    pattern(_K.NETWORK_ERROR, "peer_gone", "socket", r"socketProgress\w*: (?:abort called|Connection closed by remote peer)(?P<detail>.*)"),
    pattern(_K.NETWORK_ERROR, "proxy", "Proxy Call to rank", r"Proxy Call to rank (?P<peer_rank>\d+) failed \((?P<call>\w+)\)"),
    pattern(_K.NETWORK_ERROR, "timeout", "imeout", r"NET/\w+.*?(?P<detail>[Tt]imeout.*)"),
)  # fmt: skip
_SETUP = (
    pattern(_K.NCCL, "version_mismatch", "ismatch", r"(?:Mismatched|[Mm]ismatch).*NCCL version.*?(?:rank (?P<rank_a>\d+)\D*?(?P<have>[\d.]+\S*).*?(?:rank (?P<rank_b>\d+)\D*?(?P<other>[\d.]+\S*))?)?"),
    pattern(_K.NCCL, "duplicate_gpu", "Duplicate GPU", r"Duplicate GPU detected ?: rank (?P<rank_a>\d+) and rank (?P<rank_b>\d+) both on CUDA device (?P<gpu>\w+)"),
    pattern(_K.NCCL, "cuda", "Cuda failure", r"Cuda failure (?P<number>\d+)? ?'?(?P<detail>[^'\n]*)"),
    pattern(_K.NCCL, "cuda", "CUDA failure", r"CUDA failure (?P<number>\d+)? ?'?(?P<detail>[^'\n]*)"),
    pattern(_K.NCCL, "shared_memory", "shared memory", r"Error(?:: | while )(?:failed to |creating |attaching )*.*shared memory segment (?P<path>\S+)(?: \(?size (?P<size>\d+)\)?)?(?:.*?error: (?P<detail>.*))?"),
    pattern(_K.NCCL, "shared_memory", "/dev/shm", r"(?:Call to (?P<call>\w+) |failed to extend |unable to )*.*(?P<path>/dev/shm/\S+).*?(?:failed|to \d+ bytes)[ ,:]*(?:error:? ?)?(?P<detail>.*)"),
    pattern(_K.NCCL, "no_interface", "interface found", r"(?:Bootstrap ?: )?[Nn]o (?:usable )?(?:socket |listening )?interface found"),
    pattern(_K.NCCL, "no_interface", "NCCL_SOCKET_IFNAME", r"(?P<detail>(?:No|Could not|Failed).*NCCL_SOCKET_IFNAME.*)"),
    pattern(_K.NCCL, "files", "Too many open files", r"(?P<detail>Too many open files)"),
    pattern(_K.NCCL, "no_ib", "NET/IB : No device found", r"(?P<detail>No device found)"),
    pattern(_K.NCCL, "no_ib", "Failed to open libibverbs", r"(?P<detail>Failed to open libibverbs\S*)"),
    pattern(_K.NCCL_SETUP, "network", "Using network", r"Using network (?P<network>[\w/ -]+)"),
    pattern(_K.NCCL_SETUP, "network", "NET/", r"NET/(?P<network>IB|Socket|OFI|UCX|\w+) ?: Using (?P<devices>.*)"),
    pattern(_K.NCCL_SETUP, "version", "NCCL version", r"^NCCL version (?P<version>[\d.]+)"),
    pattern(_K.NCCL_SETUP, "gdr", "GPU Direct RDMA", r"GPU Direct RDMA (?P<state>Enabled|Disabled) for (?:HCA|GPU) ?(?P<detail>.*)"),
    pattern(_K.NCCL_SETUP, "env", "set by environment", r"(?P<key>NCCL_\w+) set by environment to (?P<to>.*)"),
    pattern(_K.NCCL_SETUP, "init", "ncclCommInitRank", r"comm (?P<comm>0x\w+) rank (?P<comm_rank>\d+) nranks (?P<nranks>\d+).*?(?P<state>Init START|Init COMPLETE|$)"),
    pattern(_K.NCCL_SETUP, "init", "Init COMPLETE", r"comm (?P<comm>0x\w+) rank (?P<comm_rank>\d+) nranks (?P<nranks>\d+).*?(?P<state>Init COMPLETE)"),
    pattern(_K.NCCL_SETUP, "abort", "Abort COMPLETE", r"comm (?P<comm>0x\w+) rank (?P<comm_rank>\d+)"),
    pattern(_K.NCCL_SETUP, "plugin", "Plugin", r"(?P<detail>No plugin found.*|Failed to find.*[Pp]lugin.*)"),
    pattern(_K.NCCL_SETUP, "acs", "ACS", r"(?P<detail>.*ACS.*)"),
)  # fmt: skip
_CALL = re.compile(
    r"(?P<op>AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|AlltoAll|Gather|Scatter|\w+): opCount (?P<op_count>[0-9a-fA-F]+) "
    r"sendbuff \S+ recvbuff \S+ count (?P<count>\d+) datatype (?P<datatype>\d+) op (?P<reduction>\d+) root (?P<root>-?\d+) "
    r"comm (?P<comm>\S+) \[nranks=(?P<nranks>\d+)\] stream (?P<stream>\S+)",
    re.ASCII,
)
_HEAD = re.compile(
    r"(?:^|\s)(?P<node>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<gpu>-?\d+)\] (?:(?P<where>[\w./]+:\d+) )?NCCL (?P<level>\w+) ?",
    re.ASCII,
)
_RETURN = re.compile(r"^(?P<file>[\w./+-]+\.\w+):\d+ -> (?P<result>\d+)", re.ASCII)


class Nccl:
    """See the module. The prefix "host:pid:tid [gpu]" names node and GPU of what follows."""

    needles: tuple[str, ...] = tuple(
        dict.fromkeys(
            [
                "NCCL INFO",
                "NCCL WARN",
                "NCCL ERROR",
                "NCCL version",
                *(p.needle for p in _NET),
                "NCCL_SOCKET_IFNAME",
                "Cuda failure",
            ]
        )
    )

    def __init__(self) -> None:
        self._table = Table([*_NET, *_SETUP])

    @property
    def open(self) -> bool:
        """Never: each line stands alone."""
        return False

    def feed(self, line: Line) -> list[LogFact]:
        """At most one fact a line."""
        head = _HEAD.search(line.text)
        if head is None:
            return self._table.feed(line)
        node = head["node"]
        inner = replace(at(line, line.text[head.end() :].strip()), node=node)
        call = _CALL.search(inner.text)
        extra = (("pid", int(head["pid"])), ("gpu", int(head["gpu"])))
        if call is not None:
            parts: dict[str, str | None] = dict(call.groupdict())
            parts["op_count"] = None
            fact = fact_of(
                inner,
                _K.NCCL_CALL,
                call["op"],
                parts,
                op_count=int(call["op_count"], 16),
                op_hex=call["op_count"],
            )
            return [replace(fact, fields=fact.fields + extra)]
        facts = self._table.feed(inner)
        if head["level"] == "INFO":
            facts = [_closed(fact) for fact in facts]
        if not facts and _RETURN.match(inner.text):
            result = _RETURN.match(inner.text)
            assert result is not None
            facts = [
                fact_of(inner, _K.NCCL, "returned", {"file": result["file"], "result": result["result"]})
            ]
        if not facts and head["level"] in ("WARN", "ERROR"):
            facts = [fact_of(inner, _K.NCCL, "warning", {"detail": inner.text[:300]})]
        return [replace(f, fields=(*f.fields, ("gpu_index", int(head["gpu"])), extra[0])) for f in facts]

    def flush(self) -> list[LogFact]:
        """Nothing is held back."""
        return []


def _closed(fact: LogFact) -> LogFact:
    """Service threads that part at the end of every job tell so at level INFO: no error."""
    parted = fact.name == "peer_gone" and fact.get("local_peer") is not None
    return replace(fact, kind=_K.NCCL_SETUP, name="closed") if parted else fact


PATTERNS: tuple[Pattern, ...] = (*_NET, *_SETUP)
