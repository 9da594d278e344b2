"""Kernel logs, outputs of tools, metrics, alerts: one incident for one fault, and what only looks like
one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatrace.model.finding import Kind, Severity, Verdict
from megatrace.model.xid import XIDS, Action
from megatrace.model.xid import xid as row
from tests.unit.log_cases import judged, said, xid

# ---- Xids


@pytest.mark.parametrize("code", sorted(XIDS))
def test_every_code_of_the_table_gives_its_severity_and_remedy(tmp_path: Path, code: int) -> None:
    diagnosis = judged(tmp_path, kernel__log=xid(code))
    (finding,) = diagnosis.findings
    assert f"Xid {code}:" in finding.summary
    assert finding.remedy
    assert (finding.severity <= Severity.P2) == (diagnosis.verdict is Verdict.FAILED)


def test_a_code_without_a_meaning_is_shown_and_asked_about(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, kernel__log=xid(999))
    assert "without a published meaning" in diagnosis.headline
    assert row(999).action is Action.OBSERVE


def test_sympathetic_codes_make_one_incident_with_the_worst_as_its_cause(tmp_path: Path) -> None:
    text = xid(48, text="DBE") + xid(63, text="Row Remapper") + xid(94, text="Contained") + xid(45, at=4)
    text += xid(154, text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", at=5)
    diagnosis = judged(tmp_path, kernel__log=text)
    (finding,) = diagnosis.findings
    assert finding.summary.startswith("GPU 0000:3b:00 on gpu-1: Xid 48")
    assert "reboot" in finding.remedy
    assert "Xid 154" in finding.remedy


def test_both_ends_of_a_link_are_one_ambiguous_incident(tmp_path: Path) -> None:
    text = xid(74, "0000:3b:00", "NVLink: fatal error on link 3") + xid(
        74, "0000:5d:00", "NVLink: fatal error on link 5"
    )
    (finding,) = judged(tmp_path, kernel__log=text).findings
    assert finding.ambiguous
    assert {device.device for device in finding.culprits.devices} == {"GPU 0000:3b:00", "GPU 0000:5d:00"}


def test_a_second_dead_gpu_is_a_second_incident_though_a_peer_reports_its_links(tmp_path: Path) -> None:
    lost = "GPU has fallen off the bus."
    text = xid(79, "0000:3b:00", lost, at=1) + xid(74, "0000:86:00", "NVLink: fatal error on link 3", at=1)
    text += xid(79, "0000:5d:00", lost, at=2) + xid(45, "0000:86:00", "preemptive cleanup", at=3)
    findings = [item for item in judged(tmp_path, kernel__log=text).findings if item.severity <= Severity.P2]
    assert sorted(item.summary[:16] for item in findings) == ["GPU 0000:3b:00 o", "GPU 0000:5d:00 o"]


def test_a_killed_job_cleans_up_on_all_its_gpus_in_one_incident(tmp_path: Path) -> None:
    text = "".join(xid(45, f"0000:{bus}:00", "pid=1, Ch 8", at=1) for bus in ("3b", "5d", "86", "af"))
    (finding,) = judged(tmp_path, kernel__log=text).findings
    assert finding.severity is Severity.P3


def test_two_gpus_of_two_nodes_are_two_incidents(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, kernel__log=xid(79, node="a") + xid(79, node="b"))
    assert len(diagnosis.findings) == 2


def test_the_application_comes_before_the_timeout_that_it_causes(tmp_path: Path) -> None:
    text = xid(13, text="Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal") + xid(
        109, text="CTX SWITCH TIMEOUT", at=8
    )
    (finding,) = judged(tmp_path, kernel__log=text).findings
    assert "Xid 13" in finding.summary
    assert (finding.kind, finding.severity) == (Kind.SOFTWARE, Severity.P2)


def test_an_address_that_was_masked_does_not_drop_the_line(tmp_path: Path) -> None:
    diagnosis = judged(
        tmp_path, kernel__log="kernel: NVRM: Xid (PCI:...): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (...)\n"
    )
    assert "Xid 145" in diagnosis.headline
    assert "masked" in said(diagnosis)


def test_the_port_that_went_down_is_tied_to_the_gpu_that_was_lost(tmp_path: Path) -> None:
    text = (
        "[10.0] pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0010(Receiver ID)\n"
        "[10.000100] pcieport 0000:00:02.0:    [ 5] Surprise Down Error    (First)\n[10.000200] nvidia 0000:02:00.0: device has no AER-aware driver\n"
        "[10.100000] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
    ).replace("[10.0]", "[10.000000]")
    diagnosis = judged(tmp_path, dmesg=text)
    assert len(diagnosis.findings) == 1
    assert "Surprise Down Error on port 0000:00:02.0, which leads to 0000:02:00, 99.9 ms before" in said(
        diagnosis
    )


# ---- the host


def test_the_lines_of_the_out_of_memory_killer_are_one_event_with_the_right_scope(tmp_path: Path) -> None:
    text = (
        "[Tue May 14 01:00:00 2024] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=936\n"
        "[Tue May 14 01:00:00 2024] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/kubepods/pod12,task=python,pid=777\n"
        "[Tue May 14 01:00:00 2024] Memory cgroup out of memory: Killed process 777 (python) total-vm:1kB, anon-rss:104000000kB, file-rss:1kB\n"
        "[Tue May 14 01:00:05 2024] oom_reaper: reaped process 777 (python), now anon-rss:0kB\n"
    )
    (finding,) = judged(tmp_path, dmesg=text).findings
    assert "cgroup's memory limit" in finding.summary
    assert "/kubepods/pod12" in " ".join(item.text for item in finding.evidence)


def test_carrier_losses_are_counted_once_each(tmp_path: Path) -> None:
    lines = [
        f"Aug 17 06:19:0{i} vm systemd-networkd[1]: ib6: {word} carrier\n"
        for i in range(4)
        for word in ("lost", "Gained")
    ]
    (finding,) = judged(tmp_path, syslog="".join(lines)).findings
    assert "4 carrier losses" in finding.summary
    assert finding.culprits.devices[0].device == "ib6"


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        ("EDAC MC2: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x2)", Verdict.FAILED, "uncorrectable"),
        ("EDAC MC2: 3 CE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x2)", Verdict.HEALTHY, "nothing"),
        ("mlx5_core 0000:ca:00.0: poll_health:835:(pid 0): Fatal error 1 detected", Verdict.FAILED, "NIC 0000:ca:00.0"),
        ("INFO: task python3:4242 blocked for more than 120 seconds.", Verdict.HANG, "stuck in the kernel"),
        ("nvme nvme2: I/O 22 QID 4 timeout, aborting", Verdict.FAILED, "nvme2"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python:123]", Verdict.FAILED, "locked up"),
        ("Kernel panic - not syncing: Attempted to kill init!", Verdict.FAILED, "crashed"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 32 LTSSM Fault Up", Verdict.FAILED, "SXid 20034"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 egress", Verdict.HEALTHY, "nothing"),
        ("nfs: server filer1 not responding, still trying", Verdict.FAILED, "filer1"),
        ("python3[77]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so[7f+1]", Verdict.FAILED, "segmentation fault"),
        ("NVRM: API mismatch: the client has the version 535.1, but this kernel module has 550.1", Verdict.FAILED, "different versions"),
    ],
)  # fmt: skip
def test_lines_of_the_kernel(tmp_path: Path, text: str, verdict: Verdict, words: str) -> None:
    diagnosis = judged(tmp_path, dmesg=f"[Sun Feb 23 16:24:18 2025] {text}\n")
    assert diagnosis.verdict is verdict
    assert words in diagnosis.headline


# ---- tools


QUERY = """==============NVSMI LOG==============
Driver Version                        : 550.1
Attached GPUs                         : 1
GPU 00000000:1B:00.0
    Product Name                      : NVIDIA H100
    GPU Recovery Action               : {recovery}
    Clocks Event Reasons
        HW Slowdown                   : {slow}
        SW Power Cap                  : Active
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity : 0
            DRAM Uncorrectable        : {ecc}
    Remapped Rows
        Correctable Error             : 0
        Uncorrectable Error           : 0
        Pending                       : {pending}
        Remapping Failure Occurred    : {failure}
    Fabric
        State                         : N/A
        Status                        : N/A
"""
GOOD = {"recovery": "None", "slow": "Not Active", "ecc": "0", "pending": "No", "failure": "No"}


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({}, Verdict.HEALTHY, "nothing"),
        ({"slow": "Active"}, Verdict.SLOW, "throttled by its hardware"),
        ({"ecc": "2"}, Verdict.FAILED, "2 uncorrectable ECC errors"),
        ({"pending": "Yes"}, Verdict.HEALTHY, "nothing"),
        ({"failure": "Yes"}, Verdict.FAILED, "could not be remapped"),
        ({"recovery": "Reset"}, Verdict.FAILED, "recovery action: Reset"),
    ],
    ids=["good", "throttled", "ecc", "pending", "failed", "recovery"],
)
def test_states_of_a_gpu(tmp_path: Path, change: dict[str, str], verdict: Verdict, words: str) -> None:
    diagnosis = judged(tmp_path, smi__txt=QUERY.format(**{**GOOD, **change}))
    assert diagnosis.verdict is verdict
    assert words in diagnosis.headline
    assert "fabric" not in " ".join(item.summary for item in diagnosis.findings).lower().replace(
        "fabric state", ""
    )


def test_the_xml_says_the_same_as_the_text(tmp_path: Path) -> None:
    xml = (
        '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log><attached_gpus>1</attached_gpus>'
        '<gpu id="00000000:1B:00.0"><product_name>NVIDIA H100</product_name><clocks_event_reasons><clocks_event_reason_hw_slowdown>Active'
        "</clocks_event_reason_hw_slowdown></clocks_event_reasons><ecc_errors><volatile><dram_uncorrectable>2</dram_uncorrectable></volatile>"
        "</ecc_errors></gpu></nvidia_smi_log>"
    )
    words = said(judged(tmp_path, smi__xml=xml))
    assert "2 uncorrectable ECC errors" in words
    assert "throttled by its hardware: hw slowdown" in words


TABLE = """| NVIDIA-SMI 460.32.03    Driver Version: 460.32.03    CUDA Version: 11.2     |
|   0  Tesla V100-SXM2...  Off  | 00000001:00:00.0 Off |                    0 |
| N/A   40C    P0    43W / 300W |      0MiB / 32510MiB |      0%      Default |
|   1  Tesla V100-SXM2...  Off  | 00000002:00:00.0 Off |                    {ecc} |
| N/A   40C    P0    43W / 300W |      0MiB / 32510MiB |      0%      Default |
{end}
"""


@pytest.mark.parametrize(
    ("ecc", "end", "verdict", "words"),
    [
        ("0", "", Verdict.HEALTHY, "nothing"),
        (
            "0",
            "WARNING: infoROM is corrupted at gpu 0002:00:00.0",
            Verdict.FAILED,
            "GPU index 1 (00000002:00:00.0)",
        ),
        ("7", "", Verdict.FAILED, "7 volatile uncorrectable"),
    ],
)
def test_the_table_and_what_stands_below_it(
    tmp_path: Path, ecc: str, end: str, verdict: Verdict, words: str
) -> None:
    diagnosis = judged(tmp_path, smi__txt=TABLE.format(ecc=ecc, end=end))
    assert diagnosis.verdict is verdict
    assert words in diagnosis.headline


def test_link_ends_come_in_pairs_and_name_nobody(tmp_path: Path) -> None:
    text = "".join(
        f"GPU {g}: Tesla V100 (UUID: GPU-{g})\n"
        + "".join(
            f"\t Link {i}: {'<inactive>' if (g, i) in ((1, 0), (2, 3)) else '25.781 GB/s'}\n"
            for i in range(4)
        )
        for g in range(4)
    )
    (finding,) = judged(tmp_path, nvlink__txt=text).findings
    assert "2 NVLink ends are inactive on 2 GPUs: GPU 1 link 0; GPU 2 link 3" in finding.summary
    assert finding.ambiguous
    assert not finding.culprits.devices


@pytest.mark.parametrize(
    ("layer", "state", "rate", "verdict"),
    [("InfiniBand", "Active", 400, Verdict.HEALTHY), ("InfiniBand", "Down", 400, Verdict.FAILED), ("Ethernet", "Down", 40, Verdict.HEALTHY), ("InfiniBand", "Active", 100, Verdict.FAILED)],
)  # fmt: skip
def test_ports(tmp_path: Path, layer: str, state: str, rate: int, verdict: Verdict) -> None:
    port = "CA 'mlx5_{n}'\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {phys}\n\t\tRate: {rate}\n\t\tLink layer: {layer}\n"
    text = port.format(n=0, state="Active", phys="LinkUp", rate=400, layer="InfiniBand")
    text += port.format(
        n=1, state=state, phys="LinkUp" if state == "Active" else "Polling", rate=rate, layer=layer
    )
    diagnosis = judged(tmp_path, ibstat__txt=text)
    assert diagnosis.verdict is verdict
    if verdict is Verdict.FAILED:
        assert "mlx5_1" in diagnosis.headline


def test_congestion_alone_is_no_fault_of_a_link(tmp_path: Path) -> None:
    text = "# Port extended counters: Lid 12 port 1\nPortSelect:......................1\nSymbolErrorCounter:..............{}\nPortXmitWait:....................22730501\n"
    assert judged(tmp_path, perf__txt=text.format(0)).verdict is Verdict.HEALTHY
    assert judged(tmp_path, perf__txt=text.format(9)).verdict is Verdict.FAILED


def test_a_disk_that_calls_itself_healthy_is_looked_at(tmp_path: Path) -> None:
    log = {
        "available_spare": 0,
        "available_spare_threshold": 11,
        "critical_warning": 0,
        "media_errors": 0,
        "num_err_log_entries": 156,
    }
    data = {
        "smartctl": {},
        "device": {"name": "/dev/nvme9"},
        "smart_status": {"passed": True},
        "nvme_smart_health_information_log": log,
    }
    diagnosis = judged(tmp_path, disk__json=json.dumps(data))
    assert "nvme9" in diagnosis.headline
    assert diagnosis.verdict is Verdict.FAILED
    log["available_spare"] = 100
    assert judged(tmp_path, disk__json=json.dumps(data)).verdict is Verdict.HEALTHY


def test_a_link_narrower_than_it_can_be_counts_and_a_slow_one_at_rest_does_not(tmp_path: Path) -> None:
    text = "3b:00.0 3D controller: NVIDIA Corporation GA100 (rev a1)\n\tLnkCap:\tPort #0, Speed 16GT/s, Width x16\n\tLnkSta:\tSpeed {}GT/s, Width x{}\n"
    assert judged(tmp_path, lspci__txt=text.format("2.5", 16)).verdict is Verdict.HEALTHY
    assert judged(tmp_path, lspci__txt=text.format("16", 8)).verdict is Verdict.FAILED


# ---- metrics and alerts


def test_a_blank_of_dcgm_is_no_temperature(tmp_path: Path) -> None:
    text = '# TYPE DCGM_FI_DEV_MEMORY_TEMP gauge\nDCGM_FI_DEV_MEMORY_TEMP{gpu="0", UUID="GPU-1"} 9223372036854775794\n'
    diagnosis = judged(tmp_path, m__prom=text)
    assert diagnosis.verdict is Verdict.HEALTHY
    assert '9223372036854775794: DCGM\'s blank value, "not supported"' in said(diagnosis)


def test_the_last_xid_of_a_gauge_is_judged_by_the_table(tmp_path: Path) -> None:
    text = (
        '# TYPE DCGM_FI_DEV_XID_ERRORS gauge\nDCGM_FI_DEV_XID_ERRORS{gpu="5",UUID="GPU-1",Hostname="n3"} 79\n'
    )
    diagnosis = judged(tmp_path, m__prom=text)
    assert diagnosis.findings[0].culprits.devices[0].node == "n3"
    assert "fallen off the bus" in diagnosis.headline


LABELS = {"alertname": "NodeDown", "instance": "gpu-1:9100", "severity": "critical"}
ALERT = {"labels": LABELS, "startsAt": "2024-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("more", "verdict", "nodes"),
    [
        ({"endsAt": "0001-01-01T00:00:00Z"}, Verdict.FAILED, ("gpu-1",)),
        ({"status": "resolved", "endsAt": "2024-01-01T01:00:00Z"}, Verdict.HEALTHY, ()),
        (
            {
                "status": {"state": "active", "silencedBy": [], "inhibitedBy": []},
                "endsAt": "2024-01-01T01:00:00Z",
            },
            Verdict.FAILED,
            ("gpu-1",),
        ),
        ({"status": {"state": "suppressed", "silencedBy": ["x"]}}, Verdict.HEALTHY, ()),
        (
            {"labels": {**LABELS, "instance": "localhost:9100"}, "status": "firing"},
            Verdict.FAILED,
            (),
        ),
    ],
    ids=["no-status", "resolved", "api", "silenced", "loopback"],
)
def test_whether_an_alert_fires_and_about_whom(
    tmp_path: Path, more: dict[str, object], verdict: Verdict, nodes: tuple[str, ...]
) -> None:
    diagnosis = judged(tmp_path, hook__json=json.dumps({"version": "4", "alerts": [{**ALERT, **more}]}))
    assert diagnosis.verdict is verdict
    serious = [item for item in diagnosis.findings if item.severity <= Severity.P2]
    assert {node for item in serious for node in item.culprits.nodes} == set(nodes)
