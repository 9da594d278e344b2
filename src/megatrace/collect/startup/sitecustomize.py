"""Loads the hook of torch.distributed into a Python process of the job, and stays out of the way otherwise.

This folder stands in ``PYTHONPATH``, so every Python of the job imports this file at its start, whatever
environment it belongs to; it may use the standard library alone. The ``sitecustomize`` that would have been
imported without it is imported in its place. It loads nothing of torch: it only asks to be told when a
script has imported ``torch.distributed``. ``MEGATRACE_TORCH=off`` keeps it from doing that.
"""

from __future__ import annotations

# ruff: noqa: PTH100, PTH120 (pathlib would cost every Python process of the job some milliseconds)
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _hook() -> None:
    """Makes the modules beside this folder importable under a name of their own, and starts the hook."""
    import types

    package = types.ModuleType("megatrace_in_process")
    package.__path__ = [os.path.dirname(HERE), os.path.dirname(os.path.dirname(HERE))]
    sys.modules[package.__name__] = package
    from megatrace_in_process import torch_watch  # type: ignore[import-not-found]

    torch_watch.watch()


def _pass_on() -> None:
    """Imports the ``sitecustomize`` of the environment, if it has one."""
    ours = sys.modules.pop("sitecustomize", None)
    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != HERE]
    sys.path[:] = paths
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if os.environ.get("MEGATRACE_TORCH", "on") != "off":
    try:
        _hook()
    except Exception as error:  # noqa: BLE001 (a job is only observed: nothing of ours may stop it)
        sys.stderr.write(f"megatrace: torch.distributed is not recorded: {error!r}\n")
_pass_on()
