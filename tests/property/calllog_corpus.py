"""Call logs that were damaged in every way we could think of, made from a seed.

Whole lines of all dialects with values at their limits, then cuts, flips, splices, NULs, long lines, and
other line ends. The same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable

NAMES = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Reduce",
    "Send",
    "Recv",
    "AlltoAll",
    "Fancy_9",
)
NUMBERS = (
    0,
    1,
    7,
    96,
    588,
    4096,
    99999999,
    100000000,
    16777216,
    2**31 - 1,
    2**31,
    5368709120,
    10**16,
    10**17,
)
LIMITS = (2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**19, 10**20)
SECONDS = ("1755590104", "0", "1", "999999999", "9223372035", "9223372036", "99999999999", "0000000001")
FRACTIONS = ("253968145", "000000000", "999999999", "5", "123456", "0000000000", "")


def number(rng: random.Random) -> str:
    """Mostly valid, at times beyond what fits, at times with leading zeros."""
    pick = rng.random()
    if pick < 0.6:
        return str(rng.choice(NUMBERS))
    if pick < 0.9:
        return str(rng.randrange(10 ** rng.randint(1, 19)))
    return rng.choice((str(rng.choice(LIMITS)), f"00{rng.randrange(100)}", "", "-1", "+1", "1e3", "1_0", "٣"))


def stream(rng: random.Random) -> str:
    """A pointer as writers print it, and as they do not."""
    pick = rng.random()
    if pick < 0.8:
        return f"0x{rng.randrange(1, 16 ** rng.randint(1, 16)):x}"
    return rng.choice(
        ("(nil)", "0x0", "0xABCDEF", "0x", "0x55g9", "0x" + "f" * 16, "0x" + "f" * 17, "nil", "7")
    )


def group_hash(rng: random.Random) -> str:
    """Signed, unsigned or hexadecimal, of any length."""
    pick = rng.random()
    value = rng.randrange(2**64)
    if pick < 0.5:
        return str(value - 2**64 if value >= 2**63 else value)
    if pick < 0.7:
        return str(value >> rng.randrange(64))
    if pick < 0.8:
        return f"0x{value:x}"
    limits = (-(2**63), -(2**63) - 1, 2**63, 2**64 - 1, 2**64, 18446744073709551609, 10**19, 0)
    return rng.choice((*map(str, limits), "-", "", "-0", "0x", "12a", "--1"))


def line(rng: random.Random) -> str:
    """One line of one dialect, mostly whole."""
    time = f"{rng.choice(SECONDS) if rng.random() < 0.2 else 1755590104}.{rng.randrange(10**9):09d}"
    if rng.random() < 0.05:
        time = f"{rng.choice(SECONDS)}.{rng.choice(FRACTIONS)}"
    rank = number(rng) if rng.random() < 0.2 else str(rng.randrange(2000))
    save = f"[save_count {rng.randrange(20) if rng.random() < 0.9 else number(rng)}] "
    name, count, on = rng.choice(NAMES), number(rng), stream(rng)
    seq = number(rng) if rng.random() < 0.3 else str(rng.randrange(20000))
    dialect = rng.randrange(5)
    if dialect == 4:
        fields = [f"[Func nccl{name}]", f"[Data {count}]", f"[stream {on}]", f"[opCount {seq}]"]
        fields.append(f"[groupHash {group_hash(rng)}]")
        head = f"[10.0.0.{rng.randrange(256)}] [node{rng.randrange(9)}] {save}[{time}] [Rank {rank}]"
        return " ".join([head, "[PCI 0000:19:00.0]", *fields])
    body = f"[{time}] [Rank {rank}] Fun {name} Data {count} stream {on}"
    if dialect:
        body = f"{body} opCount {seq}"
    if dialect > 1:
        body = f"{body} groupHash {group_hash(rng)}"
    if dialect == 3:
        body = body[: rng.choice((127, 128))]
    return (save if dialect else "") + body


def fitted(rng: random.Random) -> str:
    """A line whose body is within two bytes of the limit at which the original cuts."""
    head = "[1755590104.253968145] [Rank 7] Fun AllReduce Data 1 stream "
    tail = rng.choice(
        (" opCount 5 groupHash ", " opCount ", " opCount 12345 groupHash -", " opCount 5 groupHash 0x")
    )
    size = rng.randint(125, 130) - len(head) - len(tail)
    split = rng.randint(3, 18)
    pointer = "0x" + "5" * (split - 2)
    digits = "".join(rng.choice("0123456789") for _ in range(max(size - split, 0)))
    text = f"{head}{pointer}{tail}{digits}"
    return rng.choice(("", "[save_count 3] ")) + (
        text[: rng.randint(100, 140)] if rng.random() < 0.3 else text
    )


def _flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice((rng.randrange(256), 0, 9, 10, 13, 32, 91, 93))


def _drop(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 40)]


def _insert(rng: random.Random, data: bytearray) -> None:
    piece = rng.choice(
        (b" ", b"\t", b"\r", b"\n", b"\n\n", b"\0" * 9, b"[", b"] ", b"x", b"\xff\xfe", b"9" * 25)
    )
    at = rng.randrange(len(data) + 1)
    data[at:at] = piece


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def _long(rng: random.Random, data: bytearray) -> None:
    at = data.find(b"\n", rng.randrange(len(data))) + 1
    data[at:at] = rng.choice((b"x", b"\0", b"[Rank 1] ", b" ")) * rng.choice((300, 4090, 5000, 9000))


def _repeat(rng: random.Random, data: bytearray) -> None:
    lines = bytes(data).split(b"\n")
    lines[rng.randrange(len(lines))] = rng.choice(lines)
    data[:] = b"\n".join(lines)


def _carriage_returns(rng: random.Random, data: bytearray) -> None:
    data[:] = bytes(data).replace(b"\n", rng.choice((b"\r\n", b"\r\r\n", b" \n", b"\t\r\n")))


DAMAGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _flip, _flip, _drop, _insert, _insert, _cut, _long, _repeat, _carriage_returns,
)  # fmt: skip


def damaged_log(seed: int, lines: int = 40) -> bytes:
    """Some lines, most of them whole, some damage."""
    rng = random.Random(seed)
    one = rng.random() < 0.3
    kept = line(rng)
    text = [
        fitted(rng) if rng.random() < 0.1 else kept if one and rng.random() < 0.7 else line(rng)
        for _ in range(rng.randint(1, lines))
    ]
    data = bytearray("\n".join(text).encode() + b"\n" * (rng.random() < 0.8))
    for _ in range(rng.choice((0, 1, 2, 5, 20))):
        if not data:
            break
        rng.choice(DAMAGES)(rng, data)
    return bytes(data)
