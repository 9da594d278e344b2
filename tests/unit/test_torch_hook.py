"""The hook of torch.distributed on classes shaped like torch's, which need no torch."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from megatrace.collect import launch, torch_calls, torch_ddp, torch_groups, torch_hook, torch_ring
from megatrace.collect.torch_watch import Finder
from megatrace.model import ringformat
from megatrace.model.events import UNSEEN, EventFlag, Op
from megatrace.readers import torch_ring as reader


class Tensor:
    is_cuda = False
    dtype = "torch.float32"

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class CudaTensor(Tensor):
    is_cuda = True


class FakeRing:
    """Keeps what would be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.lines: list[tuple[Any, ...]] = []
        self.broken = False
        self.until = 0

    def open(self) -> None:
        """It is always there."""

    def held(self) -> int:
        return self.until

    def put(self, tail: bytes, comm: bytes, number: int, nbytes: int, peer: int) -> int:
        if self.broken:
            raise OSError("no ring")
        kind, op, dtype, *_ = torch_ring.TAIL.unpack(tail)
        assert kind == torch_ring.CALL
        self.lines.append(("call", Op(op).name, comm, number, nbytes, peer, dtype))
        return len(self.lines) - 1

    def waited(self, index: int) -> None:
        self.lines.append(("waited", index))

    def ended(self, index: int) -> None:
        self.lines.append(("ended", index))

    def failed(self, index: int) -> None:
        self.lines.append(("failed", index))


def torch_like(backend: str = "gloo") -> ModuleType:
    """A module with the parts of ``torch.distributed.distributed_c10d`` that the hook touches."""
    module = ModuleType("c10d")

    class Future:
        def __init__(self) -> None:
            self.callbacks: list[Any] = []

        def add_done_callback(self, callback: Any) -> None:
            self.callbacks.append(callback)

    class Work:
        fails = False

        def wait(self) -> bool:
            if self.fails:
                raise RuntimeError("timed out")
            return True

        def get_future(self) -> Future:
            return Future()

    class ProcessGroup:
        made: ClassVar[list[Any]] = []

        def __init__(self, name: str, ranks: list[int]) -> None:
            self.group_name, self.group_desc, self.ranks = name, f"desc {name}", ranks

        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            """Sums."""
            return Work()

        def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
            return Work()

        def send(self, tensors: Any, dst: int, tag: int) -> Any:
            return Work()

        def recv(self, tensors: Any, src: int, tag: int) -> Any:
            return Work()

        def barrier(self, opts: Any = None) -> Any:
            return Work()

    names: Any = module
    names.ProcessGroup, names.Work = ProcessGroup, Work
    names.get_process_group_ranks = lambda group: group.ranks
    names.get_backend = lambda group: backend
    names.get_rank = lambda: 4
    names.get_world_size = lambda: 8
    return module


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRing:
    made = FakeRing(tmp_path)
    monkeypatch.setattr(torch_ring, "open_ring", lambda: made)
    return made


def installed(module: ModuleType) -> torch_hook.Hook:
    hook = torch_hook.install(module)
    assert hook is not None
    return hook


def test_a_call_is_written_when_it_is_made_and_when_somebody_found_it_done(ring: FakeRing) -> None:
    module = torch_like()
    installed(module)
    group = module.ProcessGroup("3", [0, 4])
    comm = torch_groups.hash_of("3", [0, 4])
    work = group.allreduce([Tensor(400)])
    assert ring.lines == [("call", "ALL_REDUCE", comm, 0, 400, -1, 7)]
    assert work.wait() is True
    assert ring.lines[1:] == [("waited", 0), ("ended", 0)]
    work.wait()
    assert len(ring.lines) == 3, "only the first wait ends a call"
    group.barrier()
    assert ring.lines[3] == ("call", "BARRIER", comm, 1, 0, -1, 255)


def test_what_nccl_counts_is_the_payload(ring: FakeRing) -> None:
    module = torch_like()
    installed(module)
    group = module.ProcessGroup("3", [0, 4])
    group.all_gather_single(Tensor(800), Tensor(400))
    assert ring.lines[0][4] == 400
    assert torch_calls.payload([Tensor(1), Tensor(2)])[0] == 3
    assert torch_calls.payload([[Tensor(1), Tensor(2)]])[0] == 3
    assert torch_calls.payload("no tensor") == (0, None)


def test_messages_are_counted_by_peer_and_direction_and_peers_are_global(ring: FakeRing) -> None:
    module = torch_like()
    installed(module)
    group = module.ProcessGroup("9", [2, 6])
    works = [call([Tensor(8)], 1, 0) for _ in range(2) for call in (group.send, group.recv)]
    assert len(works) == len(ring.lines)
    assert [(line[1], line[3], line[5]) for line in ring.lines] == [
        ("SEND", 0, 6),
        ("RECV", 0, 6),
        ("SEND", 1, 6),
        ("RECV", 1, 6),
    ]


def test_only_a_call_that_somebody_waits_for_is_marked_so(ring: FakeRing) -> None:
    module = torch_like()
    installed(module)
    group = module.ProcessGroup("9", [2, 6])
    works = [group.send([Tensor(8)], 1, 0), group.recv([Tensor(8)], 1, 0)]
    works[1].wait()
    assert ring.lines[2:] == [("waited", 1), ("ended", 1)]


def test_a_work_that_was_dropped_counts_as_done_when_its_address_is_used_again(ring: FakeRing) -> None:
    module = torch_like()
    hook = installed(module)
    group = module.ProcessGroup("3", [0, 4])
    works = [group.allreduce([Tensor(4)]), group.allreduce([Tensor(4)])]
    assert [line[0] for line in ring.lines] == ["call", "call"]
    again = object.__new__(type(works[0]))
    hook.waiting[id(again)] = hook.waiting.pop(id(works[0]))
    module.Work.__new__ = lambda _: again  # the next Work has the address of one that was dropped
    assert group.allreduce([Tensor(4)]) is again
    assert ring.lines[3:] == [("ended", 0)]
    assert hook.waiting[id(again)] == 2


def test_a_wait_that_raises_ends_the_call_as_failed(ring: FakeRing) -> None:
    module = torch_like()
    installed(module)
    work = module.ProcessGroup("3", [0, 4]).allreduce([Tensor(4)])
    work.fails = True
    with pytest.raises(RuntimeError, match="timed out"):
        work.wait()
    assert ring.lines[-1] == ("failed", 0)
    assert torch_ring.FAILED == EventFlag.FAILED


def test_whoever_takes_the_future_is_told_by_it(ring: FakeRing) -> None:
    module = torch_like()
    installed(module)
    future = module.ProcessGroup("3", [0, 4]).allreduce([Tensor(4)]).get_future()
    assert len(ring.lines) == 1
    future.callbacks[0](future)
    assert ring.lines[1] == ("ended", 0)


def test_groups_of_nccl_are_named_but_their_calls_are_not_written(ring: FakeRing, tmp_path: Path) -> None:
    module = torch_like("nccl")
    hook = installed(module)
    group = module.ProcessGroup("3", [0, 4])
    group.allreduce([Tensor(4)])
    assert ring.lines == []
    assert not torch_hook.in_full(group)
    (told,) = [json.loads(path.read_text()) for path in tmp_path.glob("groups-*.json")]
    assert told["rank"] == 4
    assert told["groups"] == [
        {
            "hash": torch_groups.hash_of("3", [0, 4]).hex(),
            "name": "3",
            "description": "desc 3",
            "backend": "nccl",
            "ranks": [0, 4],
            "recorded": False,
        }
    ]
    assert told["unobserved"] == {}
    assert hook.on


def test_of_a_group_with_two_backends_only_what_runs_on_the_host_is_written(ring: FakeRing) -> None:
    module = torch_like("cpu:gloo,cuda:nccl")
    installed(module)
    group = module.ProcessGroup("3", [0, 4])
    group.allreduce([CudaTensor(4)])
    assert ring.lines == []
    group.allreduce([Tensor(4)])
    assert len(ring.lines) == 1


def test_an_error_of_ours_switches_the_hook_off_and_the_call_goes_through(
    ring: FakeRing, capsys: pytest.CaptureFixture[str]
) -> None:
    module = torch_like()
    hook = installed(module)
    group = module.ProcessGroup("3", [0, 4])
    ring.broken = True
    assert group.allreduce([Tensor(4)]) is not None
    assert group.allreduce([Tensor(4)]) is not None
    assert not hook.on
    assert capsys.readouterr().err.count("no longer recorded") == 1


def test_it_is_installed_once_and_keeps_names_and_documentation(ring: FakeRing) -> None:
    module = torch_like()
    installed(module)
    assert torch_hook.install(module) is None
    assert module.ProcessGroup.allreduce.__doc__ == "Sums."
    assert module.ProcessGroup.allreduce.__name__ == "allreduce"


def test_what_the_ring_writes_the_reader_reads(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 4)
    tail = torch_ring.tail_of(Op.SEND, 7)
    indices = [ring.put(tail, b"\1\0\0\0\0\0\0\x80", number, 400, 6) for number in range(6)]
    ring.waited(indices[3])
    ring.ended(indices[3])
    ring.waited(indices[4])
    ring.failed(indices[4])
    ring.waited(indices[5])
    ring.ended(indices[0])  # written over by now: it must not end another call
    read = ringformat.parse_ring(Path(ring.path).read_bytes(), "r")
    assert read.lost == 2
    events = reader.calls_of(read, 3, {0x8000000000000001: 0})
    assert events.seq.tolist() == [2, 3, 4, 5]
    assert events.rank.tolist() == [3] * 4
    assert events.op.tolist() == [Op.SEND] * 4
    columns = (events.comm, events.peer, events.nbytes, events.count, events.end, events.flags)
    comm, peer, nbytes, count, end, flags = [column for column in columns if column is not None]
    assert (comm[0], peer[0], nbytes[0], count[0]) == (0, 6, 400, 100)
    assert end[0] == events.enqueue[0], "nobody waits for it"
    assert events.enqueue[1] <= end[1] < events.enqueue[1] + 10**10
    assert (end[2], end[3]) == (UNSEEN, UNSEEN)
    assert flags.tolist() == [0, 0, EventFlag.FAILED, 0]
    assert abs(int(events.enqueue[0]) - time.time_ns()) < 60 * 10**9


def test_a_clock_that_is_set_while_the_job_runs_bends_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"monotonic": 50_000_000_000, "set": 1_800_000_000_000_000_000}
    fake = SimpleNamespace(
        monotonic_ns=lambda: clock["monotonic"], time_ns=lambda: clock["monotonic"] + clock["set"]
    )
    monkeypatch.setattr(torch_ring, "time", fake)
    ring = torch_ring.Ring(str(tmp_path), 1024)
    for number in range(600):
        if number == 300:
            clock["set"] += 3_600_000_000_000  # an hour forward
        clock["monotonic"] += 10_000_000
        ring.put(torch_ring.tail_of(Op.ALL_REDUCE, 7), b"12345678", number, 4, -1)
    read = ringformat.parse_ring(Path(ring.path).read_bytes(), "ring")
    times = read.records["time"].astype(np.int64)
    assert set(np.diff(times).tolist()) == {10_000_000}
    assert read.stepped == 3_600_000_000_000
    assert times[-1] == clock["monotonic"] + clock["set"], "on the clock as it was set last"
    assert read.anchored == 50_000_000_000 + 513 * 10_000_000, "looked at every 256 calls and a second"
    assert read.word("boot") == Path(torch_ring.BOOT).read_text().strip()


def test_a_ring_that_finds_no_room_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path / "nowhere"), 4)
    with pytest.raises(OSError, match="No such file"):
        ring.put(b"", b"", 0, 0, 0)


def test_numbers_of_operations_are_those_of_the_model() -> None:
    for name in ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "BROADCAST", "REDUCE", "SEND", "RECV"):
        assert getattr(torch_calls, name) == Op[name]
    for name in ("ALL_TO_ALL", "GATHER", "SCATTER", "BARRIER"):
        assert getattr(torch_calls, name) == Op[name]


class FakeModel:
    """Like DistributedDataParallel."""

    process_group = "group"

    def __init__(self) -> None:
        self._comm_hooks: list[Any] = []
        self.registered: list[Any] = []

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        self.registered.append((state, hook))

    def forward(self, x: int) -> int:
        return x + 1


def ddp(in_full: bool) -> type[FakeModel]:
    module: Any = ModuleType("ddp")
    module.DistributedDataParallel = type(
        "DistributedDataParallel", (FakeModel,), {"forward": FakeModel.forward}
    )
    assert torch_ddp.install(module, lambda group: in_full)
    assert not torch_ddp.install(module, lambda group: in_full)
    made: type[FakeModel] = module.DistributedDataParallel
    return made


def test_ddp_takes_the_hook_once_at_its_first_forward() -> None:
    model = ddp(in_full=True)()
    assert model.registered == []
    assert (model.forward(1), model.forward(2)) == (2, 3)
    assert model.registered == [("group", torch_ddp.reduce_bucket)]


def test_ddp_finds_no_annotation_to_refuse() -> None:
    parameters = inspect.signature(torch_ddp.reduce_bucket).parameters
    assert [item.name for item in parameters.values()] == ["group", "bucket"]
    assert all(item.annotation is inspect.Parameter.empty for item in parameters.values())


def test_ddp_keeps_a_hook_of_the_user_and_is_left_alone_on_nccl() -> None:
    model = ddp(in_full=True)()
    model._comm_hooks.append(("theirs", None))
    model.forward(1)
    assert model.registered == []
    other = ddp(in_full=False)()
    other.forward(1)
    assert other.registered == []


def test_the_finder_calls_back_after_the_module_was_loaded(tmp_path: Path) -> None:
    (tmp_path / "mt_watched.py").write_text("value = 1\n")
    seen: list[int] = []
    finder = Finder("mt_watched", lambda module: seen.append(module.value))
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(tmp_path))
    try:
        import mt_watched  # type: ignore[import-not-found]
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(tmp_path))
    assert mt_watched.value == 1
    assert seen == [1]


def test_a_python_of_the_job_starts_as_always_with_the_startup_folder_on_its_path(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stdout.write('theirs ')\n")
    path = f"{launch.STARTUP}:{tmp_path}"
    code = (
        "import sys; print([name for name in sys.modules if 'torch' in name or name == 'numpy'], sys.path[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path, "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("theirs ['megatrace_in_process.torch_watch']")
    assert str(launch.STARTUP) not in done.stdout
