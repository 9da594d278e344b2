"""The pictures of a profile as typed arrays in the page: operators by caller, the critical path, bandwidths.

A profile of one step has tens of thousands of operators and pieces of path, and a screen a few thousand
pixels: what would be narrower than a fifth of one is left out or joined to its neighbours, so that a page of
any profile stays small. The tables beside the pictures are complete.

Judges nothing: what is drawn stands in the `ProfileResult`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatrace.model.profile_result import (
    CollectiveTime,
    CriticalPath,
    Frame,
    PathPiece,
    ProfileResult,
    TimeKind,
)
from megatrace.reports.html_data import Block
from megatrace.reports.wording import plain

FINEST = 12_000
"""Parts of a picture's width below which a thing is not drawn: the widest screens have 4,000 pixels in a
row, and one zooms in threefold before one misses anything."""
MAX_FRAMES = 20_000
MAX_PATHS = 16
"""Paths that the page holds: one a rank; the longest are kept."""
MAX_PIECES = 30_000
MAX_POINTS = 5_000
NAME = 160
"""Characters of a name: templates of C++ run to thousands."""

KEYS = {
    TimeKind.COMPUTE: "compute",
    TimeKind.COMMUNICATION: "communication",
    TimeKind.MEMORY: "memory",
    TimeKind.LAUNCH: "launch",
    TimeKind.HOST: "host",
    TimeKind.SYNCHRONISATION: "synchronisation",
    TimeKind.DATA_LOADING: "loading",
    TimeKind.IDLE: "idle",
}
"""How the style sheet calls the colour of each kind of time."""
_COMMUNICATES = ("nccl", "c10d::", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
FRAME_KINDS = ("operator", "backward", "communication", "annotation", "all")


class Names:
    """Names that the script reads by number; each is kept once."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._number: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name, -1 for none."""
        if not name:
            return -1
        if name not in self._number:
            self._number[name] = len(self.listed)
            self.listed.append(short(name))
        return self._number[name]


def short(name: str) -> str:
    """A name that fits a line."""
    said = plain(name)
    return said if len(said) <= NAME else said[: NAME - 1] + "…"


def data_block(result: ProfileResult) -> Block:
    """Everything that the pictures of a profile draw."""
    block = Block()
    names = Names()
    block.facts["kinds"] = [{"key": KEYS[kind], "name": kind.value} for kind in TimeKind]
    if result.flame is not None and result.flame.total > 0:
        _flame(block, result.flame)
    _paths(block, drawn_paths(result), names)
    _scatter(block, drawn_points(result))
    block.facts["names"] = names.listed
    return block


# ---- operators


def frame_kind(frame: Frame) -> int:
    """Index into ``FRAME_KINDS`` of what an operator is, as its name tells."""
    name = frame.name.lower()
    if any(
        word in name
        for word in ("nccl", "c10d::", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    ):
        return 2
    if "backward" in name or name.startswith("autograd::"):
        return 1
    return 0 if "::" in name or name.startswith(("cuda", "hip")) else 3


def _flame(block: Block, root: Frame) -> None:
    rows: list[tuple[int, int, Frame]] = []
    stack = [(0, 0, root)]
    least = root.total / FINEST
    while stack and len(rows) < MAX_FRAMES:
        depth, at, frame = stack.pop()
        rows.append((depth, at, frame))
        for child in frame.children:
            if child.total >= least:
                stack.append((depth + 1, at, child))
            at += child.total
    names = Names()
    block.put("flame_depth", np.array([row[0] for row in rows]), "u2")
    block.put("flame_at", np.array([row[1] for row in rows], np.float64), "f4")
    for name in ("total", "own", "device", "count"):
        block.put(f"flame_{name}", np.array([getattr(row[2], name) for row in rows], np.float64), "f4")
    block.put("flame_name", np.array([max(names.number(row[2].name), 0) for row in rows]), "i4")
    block.put("flame_kind", np.array([4 if not row[0] else frame_kind(row[2]) for row in rows]), "u1")
    block.facts["flame"] = {
        "depth": max(row[0] for row in rows) + 1,
        "names": names.listed,
        "kinds": FRAME_KINDS[:-1],
    }


# ---- the critical path


def drawn_paths(result: ProfileResult) -> list[CriticalPath]:
    """The paths that the page draws, that of the job first, then the longest."""
    longest = sorted(result.paths, key=lambda path: -path.length)
    ranked = [*filter(None, [result.job_path]), *longest]
    return [path for path in ranked if path.pieces and path.length > 0][:MAX_PATHS]


def path_title(path: CriticalPath) -> str:
    """ "rank 3, ProfilerStep#5"."""
    return f"{'all ranks' if path.rank < 0 else f'rank {path.rank}'}, {plain(path.window)}"


def _paths(block: Block, paths: Sequence[CriticalPath], names: Names) -> None:
    numbers = {kind: number for number, kind in enumerate(TimeKind)}
    columns: dict[str, list[float]] = {name: [] for name in ("start", "end", "kind", "lane", "name")}
    listed = []
    for path in paths:
        pieces = joined(path, MAX_PIECES // len(paths))
        lanes = _lanes(path, pieces)
        at = len(columns["start"])
        for piece in pieces:
            # Milliseconds after the path's beginning: float32 holds a step of minutes to the microsecond.
            columns["start"].append((piece.start - path.start) / 1e6)
            columns["end"].append((piece.end - path.start) / 1e6)
            columns["kind"].append(numbers[piece.kind])
            columns["lane"].append(lanes[_lane(path, piece)])
            columns["name"].append(names.number(piece.name))
        listed.append(
            {
                "title": path_title(path),
                "at": at,
                "size": len(pieces),
                "length": path.length / 1e6,
                "lanes": [plain(lane) for lane in lanes],
            }
        )
    if not listed:
        return
    for name, kind in (("start", "f4"), ("end", "f4"), ("kind", "u1"), ("lane", "u2"), ("name", "i4")):
        block.put(f"path_{name}", np.array(columns[name]), kind)
    block.facts["path"] = listed


def _lane(path: CriticalPath, piece: PathPiece) -> str:
    return f"rank {piece.rank} {piece.lane}" if path.rank < 0 else piece.lane


def _lanes(path: CriticalPath, pieces: Sequence[PathPiece]) -> dict[str, int]:
    """Lane → row: host threads above streams, in order of appearance."""
    seen = dict.fromkeys(_lane(path, piece) for piece in pieces)
    ordered = sorted(seen, key=lambda lane: "stream" in lane)
    return {lane: row for row, lane in enumerate(ordered)}


def joined(path: CriticalPath, most: int) -> list[PathPiece]:
    """The pieces of a path; what would be too narrow to see is joined to the piece before it on its lane."""
    least = path.length / FINEST
    while True:
        pieces = _joined(path.pieces, least)
        if len(pieces) <= most:
            return pieces
        least *= 2


def _joined(pieces: Sequence[PathPiece], least: float) -> list[PathPiece]:
    out: list[PathPiece] = []
    weight: dict[tuple[TimeKind, str], int] = {}
    for piece in pieces:
        last = out[-1] if out else None
        took = piece.end - piece.start
        mine = (piece.kind, piece.name)
        near = last is not None and last.lane == piece.lane and last.rank == piece.rank
        if last is not None and near and (took < least or last.end - last.start < least):
            weight[mine] = weight.get(mine, 0) + took
            kind, name = max(weight, key=lambda what: weight[what])
            out[-1] = PathPiece(last.start, piece.end, kind, name, last.lane, last.rank)
        else:
            out.append(piece)
            weight = {mine: took}
    return out


# ---- collectives


def drawn_points(result: ProfileResult) -> list[CollectiveTime]:
    """Collectives whose size and bandwidth are known, those with most time first."""
    known = [one for one in result.collectives if one.nbytes and (one.bus or one.algorithm)]
    return sorted(known, key=lambda one: -one.total)[:MAX_POINTS]


def _scatter(block: Block, points: Sequence[CollectiveTime]) -> None:
    if not points:
        return
    block.put("scatter_bytes", np.array([one.nbytes for one in points], np.float64), "f4")
    block.put("scatter_speed", np.array([one.bus or one.algorithm for one in points], np.float64), "f4")
    block.put("scatter_time", np.array([one.total for one in points], np.float64), "f4")
    block.facts["scatter"] = [
        {
            "op": one.op.name,
            "group": plain(one.group) or "group not recorded",
            "measure": "bus bandwidth" if one.bus else "algorithm bandwidth",
            "count": one.count,
            "p50": one.p50,
            "exposed": one.exposed,
        }
        for one in points
    ]
