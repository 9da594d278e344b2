"""What several tests of real components need: recorders built once a session, daemons started once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.components.dask_cluster import dask
from tests.components.fake_nvml import fake_nvml, nvml_library
from tests.components.ipmi_bmc import ipmi_bmc
from tests.components.native_builds import compiled, needs_compiler
from tests.components.nccl_jobs import Built, build
from tests.components.prometheus_server import prometheus
from tests.components.redfish_bmc import redfish_board, redfish_power
from tests.components.ring_programs import SOURCES
from tests.components.slurm_cluster import slurm
from tests.components.snmp_switch import snmp_switch

__all__ = [
    "built",
    "check",
    "dask",
    "fake_nvml",
    "ipmi_bmc",
    "nvml_library",
    "prometheus",
    "redfish_board",
    "redfish_power",
    "slurm",
    "snmp_switch",
]
"""Fixtures of the real components, one file each, found by pytest in this module."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The stub of NCCL, the job, plug-in and preloaded library."""
    needs_compiler()
    return build(tmp_path_factory.mktemp("nccl"))


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that writes rings."""
    needs_compiler()
    return compiled(tmp_path_factory.mktemp("ring") / "check", *SOURCES)
