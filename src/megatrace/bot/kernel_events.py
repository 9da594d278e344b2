"""What the kernel tells by itself: new lines of its log, links that go up or down. Each says which checks to
run now.

Sources have a file descriptor to wait on. A line is an event only if a recogniser of kernel logs knows a word
of it: the kernel writes thousands of others. What the event means is not judged here; the checks look at
everything again, and so say the same as in their own round."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from megatrace.bot.kernel_log import KMSG
from megatrace.bot.nvml_events import LIBRARY
from megatrace.clock import Clock
from megatrace.readers.log_kernel import kernel
from megatrace.readers.log_nvidia import nvidia
from megatrace.readers.log_oom import OomKiller

QUICK_CHECKS = (
    *("GPU-05", "NVL-06", "PCI-02", "CPU-02", "CPU-03", "MEM-03", "DSK-02", "IB-04", "IB-18", "OS-05"),
    *("IB-01", "IB-02", "ETH-01"),
)
"""Checks that read the kernel log and sysfs alone. They go first: after an Xid the driver may not answer for
15 s, and the finding must not wait for it."""
LOG_CHECKS = (*QUICK_CHECKS[:10], "GPU-02", "GPU-04", "GPU-09", "FS-03")
"""Checks whose subject the kernel log speaks of."""
LINK_CHECKS = ("IB-01", "IB-02", "IB-04", "ETH-01")
_RECORD = 8192
_LINK_GROUP = 1
"""RTMGRP_LINK of linux/rtnetlink.h."""


class Source(Protocol):
    """Something to wait on; ``take`` reads what is there and returns the checks to run."""

    def fileno(self) -> int:
        """For select."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        ...

    def take(self) -> tuple[str, ...]:
        """The checks that the news concern; none where they concern nobody."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class KernelLines:
    """New lines of the kernel's ring buffer, from a descriptor that gives only new ones."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        recognisers = (nvidia(), OomKiller(), kernel())
        self._words = [needle.encode() for item in recognisers for needle in item.needles]

    def fileno(self) -> int:
        """For select."""
        return self._descriptor

    @property
    def ended(self) -> bool:
        """Never."""
        return False

    def take(self) -> tuple[str, ...]:
        """Reads to the present end."""
        found = False
        while True:
            try:
                record = os.read(self._descriptor, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten while nobody read: something happened
                found = True
                continue
            if not record:
                break
            found = found or any(word in record for word in self._words)
        return LOG_CHECKS if found else ()

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._descriptor)


class LinkChanges:
    """Links of network devices that change, by the kernel's route socket; needs no privilege."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.bind((0, _LINK_GROUP))
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    @property
    def ended(self) -> bool:
        """Never."""
        return False

    def take(self) -> tuple[str, ...]:
        """Empties the socket."""
        found = False
        # ENOBUFS: more happened than the socket holds; all links are looked at anyway.
        with suppress(OSError):
            while self._socket.recv(1 << 16):
                found = True
        return LINK_CHECKS if found else ()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def library_is_there() -> bool:
    """Whether NVIDIA's driver, or its library, is here; it is loaded only in a process of its own."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    loaded = Path("/proc/driver/nvidia/version").exists()
    return loaded or any(Path(folder, LIBRARY).exists() for folder in folders if folder)


class GpuEvents:
    """Xids as NVIDIA's library tells them, from a process of its own (``nvml_events``), kept in a file for
    the check.

    For machines on which the kernel log may not be read; where it may, it says the same and more.
    """

    def __init__(self, journal: Path, clock: Clock) -> None:
        self._journal, self._clock, self._rest = journal, clock, b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "megatrace.bot.nvml_events"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        journal.unlink(missing_ok=True)

    def fileno(self) -> int:
        """For select."""
        return self._pipe.fileno()

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._process.poll() is not None

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def take(self) -> tuple[str, ...]:
        """Writes every Xid with its time into the file."""
        block = os.read(self._pipe.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + block).split(b"\n")
        xids = [line.decode("ascii", "replace") for line in lines if line.startswith(b"xid ")]
        with self._journal.open("a", encoding="utf-8") as file:
            file.writelines(f"{self._clock.now()} {line}\n" for line in xids)
        return LOG_CHECKS if xids else ()

    def close(self) -> None:
        """Ends the process; one that stands in the kernel is left alone."""
        self._process.kill()
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)


def sources(host: str = "/") -> tuple[list[Source], list[str]]:
    """The sources that can be had here, and why others cannot."""
    found: list[Source] = []
    missing: list[str] = []
    try:
        descriptor = os.open(f"{host.rstrip('/')}{KMSG}", os.O_RDONLY | os.O_NONBLOCK)
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.lseek(descriptor, 0, os.SEEK_END)
            found.append(KernelLines(descriptor))
        else:
            os.close(descriptor)
            missing.append("new lines of the kernel log are seen only at the next round (it is a file)")
    except OSError as error:
        missing.append(f"new lines of the kernel log are seen only at the next round ({error.strerror})")
    try:
        found.append(LinkChanges())
    except (OSError, AttributeError) as error:
        missing.append(f"changes of links are seen only at the next round ({error})")
    return found, missing
