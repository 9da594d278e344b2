"""Any bytes into the readers of text: a Trace or a TraceError, and whatever they state can be judged and shown.

``MEGATRACE_FUZZ_RUNS`` sets how many damaged inputs are tried for each reader.
"""

from __future__ import annotations

import io
import json
import os
import random

import pytest

from megatrace.analysis.evidence import diagnose_facts
from megatrace.errors import TraceError
from megatrace.model.finding import Diagnosis
from megatrace.readers import registry
from megatrace.readers.source import ReadOptions, Source
from megatrace.reports.jsonfile import to_json
from megatrace.reports.terminal import render
from tests.unit.log_cases import position, timeout, xid

FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
RUNS = int(os.environ.get("MEGATRACE_FUZZ_RUNS") or (60_000 if FUZZ else 2_400))
"""A reader's share: with the other readers' 20,000 in `make test`, a million and more in `make fuzz`."""
LOG = (
    timeout(21, 318)
    + position(21, 318, 322, 317)
    + xid(79)
    + xid(154, text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    + "RuntimeError: Detected mismatch between collectives on ranks. Rank 5 is running collective: CollectiveFingerPrint("
    "SequenceNumber=0, OpType=ALLGATHER, TensorShape=[211, 2, 1054], TensorDtypes=Float), but Rank 6 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=0, OpType=ALLGATHER, TensorShape=[211, 2, 1055], TensorDtypes=Float)).\n"
    "oak-3:7101:7101 [0] NCCL INFO AllReduce: opCount 1af sendbuff 0x7 recvbuff 0x7 count 7340032 datatype 7 op 0 root 0 "
    "comm 0x55 [nranks=4] stream 0x55\n"
    "oak-3:7105:7105 [4] NCCL INFO AllGather: opCount 1af sendbuff 0x7 recvbuff 0x7 count 12582912 datatype 0 op 0 root 0 "
    "comm 0x56 [nranks=4] stream 0x55\n"
    "elm-9:8801:8890 [3] transport/net_ib.cc:1995 NCCL WARN NET/IB: Got completion from peer 192.168.7.4<41022> with status=12 "
    "opcode=0 len=524288 vendor err 129 (Send) localGid ::ffff:192.168.8.2 remoteGids::ffff:192.168.8.4 hca mlx5_3\n"
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 6 (pid: 50912) of binary: python\n"
    '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/app/data.py", line 77, in load\n[rank3]: KeyError: 3\n'
    " [2024-07-01 10:00:00] iteration 100/ 1000 | elapsed time per iteration (ms): 1000.0 | learning\n rate: 1 | lm loss: nan |\n"
    "Epoch: [4][60/1251]\tTime 0.311 (0.290)\tData 0.021 (0.019)\tLoss 3.4120 (3.5002)\n"
    "time (ms) | forward: 412.05 | backward: 871.60 | optimizer: 9120.33 | data loader: 0.42\n"
    "(min, max) time across ranks (ms):\n    forward-compute ....: (410.90, 1009.40)\n"
    "Nov  3 22:40:17 elm-9 systemd-networkd[811]: ib2: lost carrier\n"
    "[31011.250101] pcieport 0000:40:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, id=4009\n"
    "[31011.250188] pcieport 0000:40:01.1:    [ 4] Data Link Protocol    (First)\n"
    "6,512,88001234,-;EDAC MC1: 1 CE memory scrubbing error on CPU#1_DIMM#0 (channel:0 slot:0 socket:1)\n"
    "2025-06-11T03:20:09,41+02:00 Out of memory: Killed process 66120 (python3) total-vm:9kB, anon-rss:98304000kB, file-rss:4kB\n"
)
QUERY = (
    "Driver Version : 550.1\nAttached GPUs : 1\nGPU 00000000:1B:00.0\n    Product Name : NVIDIA H100\n    GPU Recovery Action : Reset\n"
    "    Clocks Event Reasons\n        HW Slowdown : Active\n    ECC Errors\n        Volatile\n            DRAM Uncorrectable : 2\n"
    "    Retired Pages\n        Single Bit ECC : 60\n        Double Bit ECC : 5\n        Pending Page Blacklist : Yes\n"
)
TOOLS = (
    QUERY,
    (
        '<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:1B:00.0"><ecc_errors><volatile><dram_uncorrectable>2</dram_uncorrectable>'
        "</volatile></ecc_errors></gpu></nvidia_smi_log>"
    ),
    "GPU 0: V100 (UUID: GPU-0)\n\t Link 0: 25.781 GB/s\n\t Link 1: <inactive>\n\t Link 1: Replay Errors: 3\n",
    "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n",
    "# Port extended counters: Lid 12 port 1\nPortSelect:......................1\nSymbolErrorCounter:..............9\n",
    "3b:00.0 3D controller: NVIDIA GA100 (rev ff)\n\tLnkCap:\tPort #0, Speed 16GT/s, Width x16\n\tLnkSta:\tSpeed 2.5GT/s, Width x8\n",
    json.dumps(
        {
            "smartctl": {},
            "device": {"name": "/dev/nvme9"},
            "nvme_smart_health_information_log": {"available_spare": 0, "available_spare_threshold": 11},
        }
    ),
    "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPXB\t0-27\nGPU1\tPXB\t X \t0-27\n",
    "| NVIDIA-SMI 460.32.03    Driver Version: 460 |\n|   0  Tesla V100  Off  | 00000001:00:00.0 Off |                    7 |\nWARNING: infoROM is corrupted at gpu 0001:00:00.0\n",
)
METRICS = (
    '# TYPE DCGM_FI_DEV_XID_ERRORS gauge\nDCGM_FI_DEV_XID_ERRORS{gpu="5",UUID="GPU-1",Hostname="n3"} 79\n'
    'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="5"} 72\nDCGM_FI_DEV_MEMORY_TEMP{gpu="0", UUID="GPU-1"} 9223372036854775794\nup{instance="a"} 0\n'
)
ALERTS = json.dumps(
    {
        "version": "3", "groupKey": 5,
        "alerts": [
            {"labels": {"alertname": "NodeDown", "instance": "gpu-1:9100", "severity": "emergency"}, "startsAt": "2024-01-01T00:00:00Z",
             "endsAt": "0001-01-01T00:00:00Z", "updatedAt": "2025-03-09T11:45:02.500-05:00", "status": {"state": "active"}, "receivers": [{}, {}]},
        ],
    }
)  # fmt: skip
TABLE = "rank,forward_ms,backward_ms,wait_s\n0,100.1,1,0.1\n1,100.3,1,0.2\n2,180.2,1,0.3\n"
SEEDS = {"log": (LOG,), "tool": TOOLS, "metrics": (METRICS,), "alerts": (ALERTS,), "ranktimes": (TABLE,)}
NUMBERS = (
    b"0",
    b"-1",
    b"99999999999999999999999999",
    b"nan",
    b"1e999",
    b"0x",
    b"..",
    b"\xff",
    b"\x00",
    b"\r",
    b"\n",
    b"\xd9\xa3",
    b"[",
    b'"',
    b"\x1b[31m",
)


def damaged(seed: bytes, random_: random.Random) -> bytes:
    """A few cuts, repeats, swaps and odd numbers."""
    data = bytearray(seed)
    for _ in range(random_.randint(1, 6)):
        at = random_.randrange(len(data) + 1)
        how = random_.randrange(6)
        if how == 0:
            del data[at : at + random_.randint(1, 40)]
        elif how == 1:
            data[at:at] = random_.choice(NUMBERS)
        elif how == 2:
            data[at:at] = data[at : at + random_.randint(1, 200)]
        elif how == 3 and data:
            data[at % len(data)] = random_.randrange(256)
        elif how == 4:
            del data[random_.randint(0, len(data)) :]
        else:
            start = random_.randrange(len(data) + 1)
            data[at:at] = seed[start : start + random_.randint(1, 300)]
    return bytes(data)


def judged(name: str, data: bytes) -> Diagnosis | None:
    reader = registry.get(name)(ReadOptions())
    reader.refuses(data[:65_536])
    reader.add(Source("x", io.BytesIO(data), modified=1_736_125_323_000_000_000))
    try:
        trace = reader.finish()
    except TraceError as error:
        refused = str(error)
    else:
        return diagnose_facts(trace)
    assert refused
    return None


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_damaged_text_is_read_or_refused_and_what_is_read_can_be_judged(name: str) -> None:
    random_ = random.Random(f"text {name}")
    seeds = [seed.encode() for seed in SEEDS[name]]
    stated = 0
    for run in range(RUNS):
        data = damaged(seeds[run % len(seeds)], random_)
        diagnosis = judged(name, data)
        if diagnosis is not None and run % 10 == 0:
            assert render(diagnosis, verbose=True)
            assert to_json(diagnosis)
        stated += diagnosis is not None and bool(diagnosis.findings)
    assert stated > RUNS // 50, "hardly anything was stated: the seeds are not read at all"


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_bytes_of_no_format_are_no_traceback(name: str) -> None:
    random_ = random.Random(f"bytes {name}")
    for _ in range(60):
        judged(name, random_.randbytes(random_.randint(0, 3000)))
    judged(name, b"[" * 100_000)
    judged(name, b'{"alerts":' * 20_000)
    judged(name, b"A" * 3_000_000)
