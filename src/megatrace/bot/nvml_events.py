"""Prints critical events of GPUs as NVIDIA's library tells them: a program of its own, for the library may
hang.

    ready 8                     so many GPUs are watched
    xid 79 0000:1b:00.0         an event
    ended REASON                nothing more will come

Where the kernel log may not be read (no root, a container), this is the only word of an Xid that comes by
itself. Only five functions of the library are called, by their published signatures (NVML API reference,
driver 470 and later). Ends when its parent is gone."""

from __future__ import annotations

import ctypes
import os
import sys

LIBRARY = "libnvidia-ml.so.1"
XID = 8
"""nvmlEventTypeXidCriticalError."""
TIMEOUT = 10
"""NVML_ERROR_TIMEOUT: no event within the time."""
WAIT_MS = 1_000
_BUS_ID = 32


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("identity", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("bus_id", ctypes.c_char * _BUS_ID),
    )


class _Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _place(library: ctypes.CDLL, device: ctypes.c_void_p) -> str:
    """PCI address as sysfs has it; "" where the GPU does not tell it any more."""
    info = _Pci()
    if library.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(info)):
        return ""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def main() -> int:
    """Until the library fails or the parent is gone."""
    parent = os.getppid()
    try:
        library = ctypes.CDLL(LIBRARY)
        code = library.nvmlInit_v2()
    except (OSError, AttributeError) as error:
        _say("ended", error)
        return 1
    events, count = ctypes.c_void_p(), ctypes.c_uint()
    if code or library.nvmlEventSetCreate(ctypes.byref(events)):
        _say("ended", f"NVML answers {code}")
        return 1
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    places: dict[int, str] = {}
    for index in range(count.value):
        device = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
            registered = library.nvmlDeviceRegisterEvents(device, ctypes.c_ulonglong(XID), events)
            if registered == 0 and device.value is not None:
                # Asked now: a GPU that has fallen off the bus does not tell its address any more.
                places[device.value] = _place(library, device)
    _say("ready", len(places))
    event = _Event()
    while os.getppid() == parent:
        code = library.nvmlEventSetWait_v2(events, ctypes.byref(event), ctypes.c_uint(WAIT_MS))
        if code == 0 and event.kind == XID:
            _say("xid", event.data, places.get(event.device or 0, ""))
        elif code not in (0, TIMEOUT):
            _say("ended", f"NVML answers {code}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
