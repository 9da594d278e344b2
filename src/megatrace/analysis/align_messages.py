"""Sends and Recvs between two clocks: what was sent cannot have been received before.

Each message bounds the difference of two clocks on one side; messages in both directions enclose it. With
host times only, the Recv's end is the host's next call after the exchange, which is an end only if the host
waited for it: a sharp edge at the quickest messages shows that it did, because what a host waits for arrives
at the same distance again and again, while a host that runs ahead meets the sender's times at random.

Only Recv after Send is used. That a Send ends after the Recv began holds for messages larger than NCCL's
buffers alone (``NCCL_BUFFSIZE``, 4 MiB), and one-sided bounds from both directions do without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.infer_layout import Resolved
from megatrace.model.events import NO_PEER, UNSEEN, Op
from megatrace.model.trace import Trace

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]

# Messages read in all, even over the iterations.
BUDGET = 400_000
# Messages a direction from which an edge shows.
FEWEST = 8
# The quickest tenth of the messages of hosts that wait lies within this: transfer and host jitter, not luck.
SHARP_NS = 5e5


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Messages between two clocks; ns after ``t0``.

    clocks    int64 [2]
    sent      per clock float64: when each of its Sends began
    received  per clock float64: when each of its Recvs ended; ``received[1 - i]`` belongs to ``sent[i]``
    """

    clocks: I8
    sent: tuple[F8, F8]
    received: tuple[F8, F8]

    @property
    def usual_error(self) -> float:
        """ns: half of the distance between the bounds."""
        width = sum(float((self.received[1 - i] - self.sent[i]).min()) for i in (0, 1))
        return max(width / 2, 0.0)


def collect_messages(
    trace: Trace, resolved: Resolved, clock_of: I8, t0: int, completed: bool
) -> list[Messages]:
    """Messages of all pairs of clocks that send to each other both ways. ``trace`` has peers where known."""
    events, it = trace.events, resolved.iterations
    if events.peer is None or it is None or not len(events):
        return []
    p2p = np.isin(events.op, (Op.SEND, Op.RECV)) & (events.peer != NO_PEER)
    rows = np.flatnonzero(p2p & (events.peer < len(clock_of)))
    rows = rows[clock_of[events.rank[rows]] != clock_of[events.peer[rows]]]
    index = np.minimum(np.searchsorted(it.row, rows, "left"), len(it.row) - 1) if len(it.row) else rows
    inside = (it.rank[index] == events.rank[rows]) & (it.start[index] >= 0) & (rows >= it.start[index])
    rows, number = rows[inside], it.number[index[inside]]
    step = max(1, -(-len(rows) // BUDGET))
    rows, number = rows[number % step == 0], number[number % step == 0]
    if not len(rows):
        return []
    sends = events.op[rows] == Op.SEND
    src = np.where(sends, events.rank[rows], events.peer[rows]).astype(np.int64)
    dst = np.where(sends, events.peer[rows], events.rank[rows]).astype(np.int64)
    path = (src * len(clock_of) + dst) * (int(number.max()) + 1) + number
    send, recv = _paired(rows, path, sends)
    begin, end = _begins(resolved, send, t0, completed), _ends(resolved, recv, t0, completed)
    seen = ~np.isnan(begin) & ~np.isnan(end)
    return _by_pair(
        clock_of[events.rank[send[seen]]],
        clock_of[events.rank[recv[seen]]],
        begin[seen],
        end[seen],
        completed,
    )


def _paired(rows: I8, path: I8, sends: NDArray[np.bool_]) -> tuple[I8, I8]:
    """(rows of Sends, rows of their Recvs): first in, first out per direction and iteration."""
    order = np.lexsort((rows, sends, path))
    rows, path, sends = rows[order], path[order], sends[order]
    run = np.flatnonzero(np.concatenate([[True], (path[1:] != path[:-1]) | (sends[1:] != sends[:-1])]))
    length = np.diff(np.append(run, len(rows)))
    paths, sending = path[run], sends[run]
    # Recvs (False) sort before the Sends of their path. A path with unequal numbers has lost some: not used.
    fits = np.flatnonzero(
        (paths[:-1] == paths[1:]) & ~sending[:-1] & sending[1:] & (length[:-1] == length[1:])
    )
    at = np.arange(int(length[fits].sum())) - np.repeat(np.cumsum(length[fits]) - length[fits], length[fits])
    return (
        rows[np.repeat(run[fits + 1], length[fits]) + at],
        rows[np.repeat(run[fits], length[fits]) + at],
    )


def _begins(resolved: Resolved, rows: I8, t0: int, completed: bool) -> F8:
    events = resolved.trace.events
    column = events.start[rows] if completed and events.start is not None else events.enqueue[rows]
    return np.where(column == UNSEEN, np.nan, column - t0)


def _ends(resolved: Resolved, rows: I8, t0: int, completed: bool) -> F8:
    """When each Recv was through: its end, or the host's next call that is no Send or Recv."""
    events = resolved.trace.events
    if completed and events.end is not None:
        column = events.end[rows]
        return np.where(column == UNSEEN, np.nan, column - t0)
    n = len(events)
    other = ~np.isin(events.op, (Op.SEND, Op.RECV))
    places = np.append(np.flatnonzero(other), n)
    after = places[np.searchsorted(places, rows, "right")]
    known = np.minimum(after, n - 1)
    same = (after < n) & (events.rank[known] == events.rank[rows])
    gaps = resolved.gap_rows
    same &= np.searchsorted(gaps, known, "right") == np.searchsorted(gaps, rows, "right")
    return np.where(same, events.enqueue[known] - t0, np.nan)


def _by_pair(src: I8, dst: I8, begin: F8, end: F8, completed: bool) -> list[Messages]:
    clocks = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    way = src * clocks + dst
    order = np.argsort(way, kind="stable")
    ways, first = np.unique(way[order], return_index=True)
    bounds = np.append(first, len(order))
    found = {int(w): order[bounds[i] : bounds[i + 1]] for i, w in enumerate(ways)}
    result = []
    for w, there in found.items():
        a, b = divmod(w, clocks)
        back = found.get(b * clocks + a)
        if a > b or back is None:
            continue
        item = Messages(np.asarray([a, b]), (begin[there], begin[back]), (end[back], end[there]))
        if completed or (_sharp(end[there] - begin[there]) and _sharp(end[back] - begin[back])):
            result.append(item)
    return result


def _sharp(delay: F8) -> bool:
    """Whether the quickest messages took about the same: the receiver waited for them."""
    if len(delay) < FEWEST:
        return False
    quickest = np.sort(delay)[: max(len(delay) // 10, 2)]
    return bool(quickest[-1] - quickest[0] <= SHARP_NS)
