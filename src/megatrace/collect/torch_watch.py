"""Tells the hook when a process has imported ``torch.distributed``; costs nothing in one that never does.

A finder at the front of ``sys.meta_path`` looks at names only. When the module that defines process groups
is imported, by whatever route, it lets Python find it as always and installs the hook after its body has run.
Standard library only, and no import of torch: this runs in every Python process of a job.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

GROUPS = "torch.distributed.distributed_c10d"
"""The module in which every process group is made."""
DDP = "torch.nn.parallel.distributed"
"""The module in which DistributedDataParallel is defined."""
OPTIMIZER = "torch.optim.optimizer"
"""The module that every optimizer comes from."""
PLACES = (
    "megatron.core.pipeline_parallel.schedules",
    "torch.distributed.pipelining.stage",
    "deepspeed.runtime.pipe.engine",
)
"""Modules that run micro-batches, as ``torch_marks`` has them: a test compares the two lists."""


def watch() -> None:
    """Installs the hook now where torch.distributed is there, else as soon as it is."""
    marked = [(name, _install_marks) for name in (OPTIMIZER, *PLACES)]
    for name, after in ((GROUPS, _install_groups), (DDP, _install_ddp), *marked):
        module = sys.modules.get(name)
        if module is not None:
            after(module)
        elif not any(isinstance(finder, Finder) and finder.name == name for finder in sys.meta_path):
            sys.meta_path.insert(0, Finder(name, after))


def _install_groups(module: ModuleType) -> None:
    from . import torch_hook

    torch_hook.install(module)


def _install_ddp(module: ModuleType) -> None:
    from . import torch_ddp, torch_hook

    torch_ddp.install(module, torch_hook.in_full)


def _install_marks(module: ModuleType) -> None:
    from . import torch_marks

    if module.__name__ == OPTIMIZER:
        torch_marks.watch_optimizers(module)
    else:
        torch_marks.watch_micro_batches(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module as Python would without it, and has something done after it was loaded."""

    def __init__(self, name: str, after: Callable[[ModuleType], None]) -> None:
        self.name, self.after = name, after
        self.asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the watched module with a loader that calls back; None for every other name."""
        if fullname != self.name or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.after)
        return spec


class _Loader(importlib.abc.Loader):
    """The module's own loader, and a word afterwards."""

    def __init__(self, loader: importlib.abc.Loader, after: Callable[[ModuleType], None]) -> None:
        self.loader, self.after = loader, after

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module; what goes wrong afterwards is said in one line, and the job goes on."""
        self.loader.exec_module(module)
        try:
            self.after(module)
        except Exception as error:  # noqa: BLE001 (a job is only observed: nothing of ours may stop it)
            sys.stderr.write(f"megatrace: torch.distributed is not recorded: {error!r}\n")

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)
