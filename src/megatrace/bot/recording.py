"""A recorded machine as a folder or an archive (``.tar``, ``.tar.gz``): files as they were, the rest as one
JSON.

    system.json      schema, name, time, programs with their outputs, links, what was refused, counters
    files/proc/…     every file that was read, at its path

A folder is made to be read and edited by people, so a bug report becomes a fixture by putting it into the
tests. Names, addresses and secrets are masked on writing (``collect.masking``) unless told otherwise.
Untrusted input: names in an archive lead nowhere, sizes are bounded, nothing is executed."""

from __future__ import annotations

import getpass
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from megatrace import __version__
from megatrace.bot.recorded_system import Recording
from megatrace.collect.masking import Masks
from megatrace.errors import TraceError, UsageError
from megatrace.model.system import FileInfo, FileKind, Ran, Space, Why

SCHEMA = "megatrace.system/1"
MANIFEST = "system.json"
FILES = "files"
MAX_MEMBER = 64 << 20
"""Bytes of one member: a kernel log is cut at 8 MB when it is taken."""
MAX_MEMBERS = 200_000
"""A node with eight GPUs and NICs is 3,000 files."""


def write_recording(recording: Recording, path: Path, *, masked: bool = True) -> Mapping[str, int]:
    """Writes a folder, or an archive where the name says so; returns how much of what kind was masked.

    Raises UsageError where the place cannot be written or holds something already.
    """
    members = dict(_members(recording))
    masks = Masks()
    if masked:
        members = _masked(members, recording, masks)
    try:
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            _write_archive(members, path)
        else:
            _write_folder(members, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return {what.value: number for what, number in masks.counts().items() if number}


def read_recording(path: Path) -> Recording:
    """Raises UsageError where there is nothing, TraceError where it is no recording of a machine."""
    if not path.exists():
        raise UsageError(f"{path} does not exist: name a bundle that megatrace inspect --record wrote")
    try:
        members = _from_folder(path) if path.is_dir() else _from_archive(path)
        manifest = json.loads(members.pop(MANIFEST))
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            raise TraceError(f"{path}: {MANIFEST} is of another version; this one reads {SCHEMA}")
        return _recording(manifest, members)
    except KeyError as error:
        raise TraceError(f"{path} is no recording of a machine: {error} is not in it") from None
    except (tarfile.TarError, OSError, EOFError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise TraceError(f"{path} is a damaged recording of a machine ({error})") from None


# ---- as members


def _members(recording: Recording) -> Iterator[tuple[str, bytes]]:
    text = json.dumps(manifest_of(recording), indent=1, ensure_ascii=False)
    yield MANIFEST, text.encode("utf-8", "backslashreplace")
    for path, content in sorted(recording.files.items()):
        yield f"{FILES}{path}", content.encode("utf-8", "replace")


def manifest_of(recording: Recording) -> dict[str, Any]:
    """Everything but the files, as JSON has it."""
    return {
        "schema": SCHEMA,
        "tool_version": __version__,
        "name": recording.name,
        "time": str(recording.time),
        "root": recording.root,
        "complete": recording.complete,
        "notes": list(recording.notes),
        "commands": [_ran(ran) for ran in recording.commands.values()],
        "links": recording.links,
        "refused": {path: why.name for path, why in recording.refused.items()},
        "infos": {
            path: [info.kind.name, info.size, info.mode, info.modified]
            for path, info in recording.infos.items()
        },
        "spaces": {
            path: [space.size, space.available, space.files, space.files_free]
            for path, space in recording.spaces.items()
        },
        "globs": {pattern: list(found) for pattern, found in recording.globs.items()},
        "counters": recording.counters,
    }


def _ran(ran: Ran) -> dict[str, Any]:
    said: dict[str, Any] = {"argv": list(ran.argv), "code": ran.code, "seconds": ran.seconds}
    said |= {"why": ran.why.name} if ran.why else {}
    # As lines, so that a person can read and change what a program printed.
    return said | {"output": ran.output.split("\n"), "error": ran.error.split("\n")}


def _recording(manifest: Mapping[str, Any], members: Mapping[str, bytes]) -> Recording:
    files = {
        name[len(FILES) :]: data.decode("utf-8", "replace")
        for name, data in members.items()
        if name.startswith(f"{FILES}/")
    }
    return recording_of(manifest, files)


def recording_of(manifest: Mapping[str, Any], files: Mapping[str, str]) -> Recording:
    """The reverse of `manifest_of`. Raises KeyError, TypeError or ValueError for what is none."""
    commands = {}
    for item in manifest["commands"]:
        argv = tuple(str(part) for part in item["argv"])
        why = Why[item["why"]] if "why" in item else None
        output, error = ("\n".join(map(str, item.get(key, [""]))) for key in ("output", "error"))
        commands[argv] = Ran(argv, item["code"], output, error, why, float(item.get("seconds", 0.0)))
    return Recording(
        name=str(manifest["name"]),
        time=int(manifest["time"]),
        root=bool(manifest.get("root", True)),
        complete=bool(manifest.get("complete", False)),
        files=dict(files),
        refused={str(path): Why[why] for path, why in manifest.get("refused", {}).items()},
        links={str(path): str(target) for path, target in manifest.get("links", {}).items()},
        infos={
            str(path): FileInfo(FileKind[info[0]], int(info[1]), int(info[2]), int(info[3]))
            for path, info in manifest.get("infos", {}).items()
        },
        spaces={str(path): Space(*map(int, space)) for path, space in manifest.get("spaces", {}).items()},
        commands=commands,
        globs={str(key): tuple(map(str, found)) for key, found in manifest.get("globs", {}).items()},
        counters=dict(manifest.get("counters", {})),
        notes=tuple(map(str, manifest.get("notes", ()))),
    )


def _masked(members: Mapping[str, bytes], recording: Recording, masks: Masks) -> dict[str, bytes]:
    masks.declare((recording.name,))
    with suppress(KeyError, OSError):
        masks.declare((), (getpass.getuser(),))
    for data in members.values():
        masks.look(data)
    masks.settle()
    return {masks.text(name): masks.apply(data) for name, data in members.items()}


# ---- in and out


def _write_archive(members: Mapping[str, bytes], path: Path) -> None:
    mode = "w" if path.name.endswith(".tar") else "w:gz"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _write_folder(members: Mapping[str, bytes], path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is there already and not an empty folder: name a new one")
    for name, data in members.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _from_folder(path: Path) -> dict[str, bytes]:
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise KeyError(MANIFEST)
    with manifest.open("rb") as head:
        found = {MANIFEST: _bounded(head.read)}
    for number, file in enumerate(sorted((path / FILES).rglob("*"))):
        if number > MAX_MEMBERS:
            raise ValueError(f"more than {MAX_MEMBERS:,} files")
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as stream:
                found[file.relative_to(path).as_posix()] = _bounded(stream.read)
    return found


def _from_archive(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            data = archive.extractfile(member) if member.isreg() else None
            if data is not None:
                found[member.name.removeprefix("./")] = _bounded(data.read)
            if len(found) > MAX_MEMBERS:
                raise ValueError(f"more than {MAX_MEMBERS:,} files")
    return found


def _bounded(read: Callable[[int], bytes]) -> bytes:
    data = read(MAX_MEMBER + 1)
    if len(data) > MAX_MEMBER:
        raise ValueError(f"a member of more than {MAX_MEMBER >> 20} MiB")
    return data
