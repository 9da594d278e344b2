"""Personal data is found where formats put it, and replaced everywhere alike, length for length."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.collect.masking import Masks, What
from megatrace.commands.packing import BLOCK, OVERLAP, cut

LINES = b"""\
dgx-017:4123:4188 [3] NCCL INFO Using network IB, peer 10.12.7.3:4791
[192.168.40.21] [dgx-018] [save_count 1] [1755590104.2] [Rank 0] [Func ncclAllReduce] [Data 1]
Nov 30 02:13:40 dgx-019 kernel: NVRM: Xid (PCI:0000:19:00.0): 79, GPU has fallen off the bus
2026-11-30T02:13:40.123+00:00 dgx-020.cluster.example kernel: mlx5_3 link down
{"hostname": "dgx-021", "rank": 4, "gid": "fe80:0000:0000:0000:0202:c9ff:fe11:2233"}
/home/alice/run7/train.py on dgx-017 and dgx-0170, mail alice@mail.example, NCCL_SOCKET_IFNAME=eth0
export HF_TOKEN=hf_abcdefghijklmnopqrst WANDB_API_KEY="0123456789abcdef" --password hunter22
Authorization: Bearer eyJhbGciOi.J9 SLURM_JOB_NODELIST=dgx-[017-021]
mac 04:3f:72:a1:b2:c3 short fe80::1ff:fe23 time 02:13:40 pci 0000:19:00.0 loop 127.0.0.1
"""
PRIVATE = rb"dgx-\d|alice|192\.168|10\.12\.7|hf_|0123456789abcdef|hunter22|eyJ|fe80|04:3f|example|017-021"


def masked(data: bytes) -> tuple[bytes, Masks]:
    masks = Masks()
    masks.look(data)
    masks.settle()
    return masks.apply(data), masks


def test_nothing_private_is_left_and_the_rest_is_as_it_was() -> None:
    out, masks = masked(LINES)
    assert not re.search(PRIVATE, out.replace(b"dgx-0170", b"")), re.search(PRIVATE, out)
    assert len(out) == len(LINES)
    for kept in (b"NCCL INFO Using network IB, peer ", b":4791", b"[save_count 1] [1755590104.2] [Rank 0]",
                 b"Xid (PCI:0000:19:00.0): 79", b"NCCL_SOCKET_IFNAME=eth0", b"02:13:40", b"127.0.0.1",
                 b"mlx5_3 link down", b'"rank": 4'):  # fmt: skip
        assert kept in out
    assert masks.counts()[What.SECRET] == 5


def test_a_name_has_one_pseudonym_everywhere_and_longer_names_are_others() -> None:
    out, masks = masked(LINES)
    mapping = masks.mapping()
    pseudonym = mapping["dgx-017"].encode()
    assert out.count(pseudonym) == LINES.count(b"dgx-017") - LINES.count(b"dgx-0170")
    assert b"dgx-0170" in out  # nobody said that this is a host: it stands where no format has one
    assert mapping["dgx-020.cluster.example"] == f"{mapping['dgx-020']}.xxxxxxx.xxxxxxx"
    names = [f"dgx-0{number}" for number in (17, 18, 19, 20, 21)]
    assert sorted(mapping[name] for name in names) == [mapping[name] for name in names]  # order is kept
    assert "hf_" not in str(mapping)  # a secret is in no file, not even in that


@pytest.mark.parametrize(
    "argv",
    [
        b'{"argv": ["train.py", "--hf-token", "s3cr3tvalue", "--seq-length", "4096"]}',
        b"train.py\0--api-key\0s3cr3tvalue\0--seq-length\x004096\0",
        b'["train.py", "--wandb-key=s3cr3tvalue", "--seq-length", "4096"]',
    ],
)
def test_secrets_among_the_arguments_of_a_program_are_masked(argv: bytes) -> None:
    out, masks = masked(argv)
    assert out == argv.replace(b"s3cr3tvalue", b"xxxxxxxxxxx")
    assert masks.counts()[What.SECRET] == 1


def test_words_about_tokens_are_no_secrets() -> None:
    argv = b"--tokenizer-type GPT2BPETokenizer --max-tokens 131072 --train-tokens=300000000000"
    assert masked(argv)[0] == argv


def test_masking_what_is_masked_changes_nothing() -> None:
    out, masks = masked(LINES)
    before = masks.secrets
    assert masks.apply(out) == out
    assert masks.secrets == before


def test_no_pseudonym_is_the_name_of_another_host() -> None:
    data = b"".join(b"%s:1:2 [0] NCCL INFO x\n" % name for name in (b"h0001", b"abcde", b"h0002", b"zzzzz"))
    out, masks = masked(data)
    made = masks.mapping()
    assert len(set(made.values())) == 4
    assert not set(made) & set(made.values())
    assert len(set(re.findall(rb"^(\w+):", out, re.MULTILINE))) == 4


@pytest.mark.parametrize("word", ["a1", "localhost", "rank", "stream", "Func", "12345"])
def test_words_of_formats_and_words_that_are_too_short_are_no_names(word: str) -> None:
    data = f"{word}:1:2 [0] NCCL INFO and {word} again\n".encode()
    assert masked(data)[0] == data


def test_declared_names_are_masked_wherever_they_stand() -> None:
    masks = Masks()
    masks.declare(["worker7.example.org"], ["mallory"])
    masks.settle()
    out = masks.apply(b"\x80\x04\x8c\x07worker7\x94 by mallory_2 on worker7.example.org")
    assert out.startswith(b"\x80\x04\x8c\x07h")  # a length field before the name stays right
    assert b"worker7" not in out
    assert b"mallory" not in out


@given(st.binary(max_size=400))
def test_any_bytes_keep_their_length(data: bytes) -> None:
    out, masks = masked(data)
    assert len(out) == len(data)
    assert masks.apply(out) == out


def test_blocks_are_whole_lines_and_without_lines_overlap() -> None:
    text = b"".join(b"line %d\n" % number for number in range(300_000))
    blocks = list(cut(_reader(text)))
    assert b"".join(blocks) == text
    assert all(block.endswith(b"\n") for block in blocks)
    assert len(blocks) > 2
    binary = bytes(range(10)) * (BLOCK // 5)
    pieces = list(cut(_reader(binary)))
    for left, right in pairwise(pieces):
        assert right.startswith(left[-OVERLAP:])


def _reader(data: bytes) -> Callable[[memoryview], int]:
    rest = [data]

    def readinto(view: memoryview) -> int:
        part = rest[0][: len(view)]
        view[: len(part)] = part
        rest[0] = rest[0][len(part) :]
        return len(part)

    return readinto
