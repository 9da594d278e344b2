"""Many machines asked at once, each by a program (ssh, srun) that runs ``megatrace inspect`` there.

Many at a time, each with a limit; one that gives no answer is told as such and never stops the others. What
another machine prints is not trusted to be an inspection."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from megatrace.model.check import Inspection
from megatrace.model.check_json import decoded
from megatrace.model.fleet import Asked

AT_ONCE = 64
"""Programs at a time: ssh to 1,000 machines takes a minute, and this one machine's memory 600 MB."""
LIMIT_S = 90.0
"""For one machine: an inspection takes 3 s, a login behind a slow directory 20 s."""
MAX_ANSWER = 16 << 20

Progress = Callable[[int, int], None]


def command(node: str, over: str, words: Sequence[str]) -> list[str]:
    """The command line that looks at one machine; nothing of it goes through a shell here."""
    if over == "srun":
        return ["srun", "--overlap", "-N1", "-n1", "-w", node, "--", *words]
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "StrictHostKeyChecking=accept-new"]
    return ["ssh", *options, "--", node, *words]


def ask(node: str, argv: Sequence[str], limit_s: float = LIMIT_S) -> Asked:
    """Runs one command and reads the inspection that it prints."""
    try:
        done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Asked(node, None, f"no answer within {limit_s:.0f} s")
    except OSError as error:
        return Asked(node, None, f"{argv[0]}: {error.strerror}")
    if not done.stdout.strip():
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Asked(node, None, (said[-1] if said else f"{argv[0]} ended with {done.returncode}")[:200])
    return read(node, done.stdout[:MAX_ANSWER])


def read(node: str, answer: bytes) -> Asked:
    """An inspection as JSON. What another machine prints is not trusted to be one."""
    try:
        said = json.loads(answer)
        results = tuple(decoded(item) for item in said["results"])
        time, about, seconds = int(said["time_ns"]), str(said["about"]), float(said["seconds"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Asked(node, None, f"printed no inspection ({error!r:.60})")
    return Asked(node, Inspection(node, time, about, results, seconds))


def ask_all(
    commands: Mapping[str, Sequence[str]],
    progress: Progress | None = None,
    at_once: int = AT_ONCE,
    limit_s: float = LIMIT_S,
) -> tuple[Asked, ...]:
    """Every machine, many at a time; in the order given. ``progress`` is told how many of how many."""
    found: dict[str, Asked] = {}
    with ThreadPoolExecutor(max_workers=max(1, min(at_once, len(commands)))) as pool:
        running = [pool.submit(ask, node, argv, limit_s) for node, argv in commands.items()]
        for number, future in enumerate(as_completed(running), 1):
            asked = future.result()
            found[asked.node] = asked
            if progress is not None:
                progress(number, len(commands))
    return tuple(found[node] for node in commands)
