"""Call logs for the ingest benchmark: the shape of a large job's log, made from a seed.

Three communicators per rank with the mix of calls of a tensor- and pipeline-parallel training, in the dialect
with group hashes (about 139 bytes a line, the longest of the common ones).
"""

from __future__ import annotations

import random
from pathlib import Path

T0 = 1755590104253968145


def write_rank(path: Path, rank: int, lines: int) -> int:
    """Writes one rank's log; its size in bytes."""
    rng = random.Random(rank)
    base = 0x55919D27B4B0 + rank * 0x10000
    groups = [(base + 64 * k, -(1234567890123456789 + 7919 * (rank // 8) + k)) for k in range(3)]
    counters = [0, 0, 0]
    now = T0 + rank * 1000
    text: list[str] = []
    for _ in range(lines):
        pick = rng.random()
        if pick < 0.8:
            k, name, count = 0, "AllReduce", 16777216
        elif pick < 0.92:
            k, name, count = 1, rng.choice(("Send", "Recv")), 8388608
        else:
            k, name, count = 2, rng.choice(("ReduceScatter", "AllGather")), 25165824
        stream, group = groups[k]
        now += rng.randrange(20_000, 900_000)
        text.append(
            f"[save_count {len(text) // 9999 + 1}] [{now // 10**9}.{now % 10**9:09d}] [Rank {rank}] "
            f"Fun {name} Data {count} stream 0x{stream:x} opCount {counters[k]} groupHash {group}\n"
        )
        counters[k] += 1
    data = "".join(text).encode()
    path.write_bytes(data)
    return len(data)


def write_job(folder: Path, *, ranks: int, lines: int) -> int:
    """One file per rank; bytes in all."""
    folder.mkdir(parents=True)
    return sum(write_rank(folder / f"rank_{rank}.log", rank, lines) for rank in range(ranks))
