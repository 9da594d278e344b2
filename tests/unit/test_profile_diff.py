"""Two profiled runs compared: what became slower, what is new, and which settings changed with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis.profile_diff import compare
from megatrace.collect.run_settings import commit_of, expanded, settings_near, surroundings
from megatrace.model.profile_diff import Change, Difference, ProfileDiff, Subject
from megatrace.model.profile_result import KernelTime, ProfileResult, StepTime, TimeKind
from megatrace.model.run_settings import Area, Setting
from megatrace.reports import ReportOptions
from megatrace.reports.profile_diff_text import render, render_json
from tests.unit.profile_page_cases import MS, device, everything, kernel, operator


def run(steps: int = 2, length: int = 100, **changes: Any) -> ProfileResult:
    """A run of one rank whose kernels and operators take so much in all its steps together."""
    marked = tuple(
        StepTime(0, f"ProfilerStep#{n}", n * 1_000 * MS, (n * 1_000 + length) * MS) for n in range(steps)
    )
    bare = {"ranks": (device(0),), "steps": marked, "collectives": (), "paths": (), "flame": None}
    return replace(everything(), **{**bare, "operators": (), "kernels": (), **changes})


def only(diff: ProfileDiff) -> Difference:
    (difference,) = diff.differences
    return difference


def test_a_kernel_that_takes_longer_is_slower() -> None:
    diff = compare(run(kernels=(kernel("gemm", 40),)), run(length=110, kernels=(kernel("gemm", 60),)))
    found = only(diff)
    assert (found.subject, found.name, found.change) == (Subject.KERNEL, "gemm", Change.SLOWER)
    assert (found.before, found.after) == (20 * MS, 30 * MS)
    assert (found.before_count, found.after_count) == (5, 5)
    assert (diff.step_before, diff.step_after) == (100 * MS, 110 * MS)


def test_a_longer_recording_is_not_slower() -> None:
    short = run(steps=2, kernels=(kernel("gemm", 40, calls=10),))
    long = run(steps=6, kernels=(kernel("gemm", 120, calls=30),))
    assert compare(short, long).differences == ()


def test_more_ranks_are_not_slower() -> None:
    one = run(steps=0, kernels=(kernel("gemm", 40, calls=10),))
    two = run(steps=0, ranks=(device(0), device(1)), kernels=(kernel("gemm", 80, calls=20),))
    diff = compare(one, two)
    assert diff.differences == ()
    assert not diff.stepped
    assert "Ranks profiled: 1 before, 2 after" in " ".join(diff.notes)


def test_more_calls_are_told_apart_from_slower_ones() -> None:
    before = run(operators=(operator("aten::copy_", 20, 10),))
    after = run(operators=(operator("aten::copy_", 40, 20),))
    assert only(compare(before, after)).change is Change.MORE
    assert only(compare(after, before)).change is Change.FEWER


def test_what_is_new_comes_instead_of_what_the_same_operator_launched() -> None:
    before = run(kernels=(kernel("ampere_sgemm", 40),))
    after = run(
        kernels=(kernel("sm90_xmma_gemm", 30), replace(kernel("softmax", 20), operators=("aten::softmax",)))
    )
    found = {item.name: item for item in compare(before, after).differences}
    assert found["ampere_sgemm"].change is Change.GONE
    assert found["sm90_xmma_gemm"].change is Change.NEW
    assert found["sm90_xmma_gemm"].instead_of == "ampere_sgemm"
    assert found["softmax"].instead_of == ""


def test_small_differences_are_not_worth_a_word() -> None:
    before = run(kernels=(kernel("relu", 4, calls=10),))
    after = run(kernels=(kernel("relu", 5, calls=10),))  # 0.5 ms of a step of 100 ms
    assert len(compare(before, after).differences) == 1
    after = run(kernels=(KernelTime("relu", TimeKind.COMPUTE, 10, 4_800_000, 0, 0, 0, 0, ()),))
    assert compare(before, after).differences == ()


def test_collectives_are_compared_by_size() -> None:
    one, two = everything().collectives
    slower = replace(two, total=two.total * 2)
    found = only(compare(run(collectives=(one, two)), run(collectives=(one, slower))))
    assert found.name == "ALL_REDUCE of 67,108,864 bytes in 8 ranks"
    assert found.change is Change.SLOWER


def test_settings_that_one_run_did_not_record_did_not_change() -> None:
    old = (Setting(Area.ENVIRONMENT, "NCCL_ALGO", "Ring"), Setting(Area.COMMIT, "commit", "a" * 40))
    new = (Setting(Area.ENVIRONMENT, "NCCL_PROTO", "LL"),)
    diff = compare(run(), run(), settings=(old, new))
    assert [(c.key, c.before, c.after) for c in diff.settings] == [
        ("NCCL_ALGO", "Ring", None),
        ("NCCL_PROTO", None, "LL"),
    ]
    assert diff.recorded == (Area.ENVIRONMENT,)


def test_the_text_says_what_when_and_with_which_setting() -> None:
    nodes = [Setting(Area.NODES, name, "in the job") for name in ("node1", "node2", "node7")]
    old = (Setting(Area.ENVIRONMENT, "NCCL_ALGO", "Ring"), *nodes[:2])
    new = (Setting(Area.ENVIRONMENT, "NCCL_ALGO", "Tree"), nodes[0], nodes[2])
    slow = run(length=110, kernels=(kernel("gemm", 60),))
    diff = compare(run(kernels=(kernel("gemm", 40),)), slow, ("old", "new"), (old, new))
    text = render(diff, ReportOptions(width=100))
    assert text.startswith("SLOWER  a step takes 110 ms instead of 100 ms (+10 %); most in kernel gemm")
    for said in (
        "new against old",
        "environment NCCL_ALGO: Ring → Tree",
        "nodes: +node7 −node2",
        "20 ms → 30 ms",
    ):
        assert said in text, text
    whole = json.loads(render_json(diff))
    assert whole["schema"] == "megatrace.profile_diff/1"
    assert whole["differences"][0]["change"] == "slower"


def test_two_equal_runs_are_the_same() -> None:
    text = render(compare(everything(), everything()), ReportOptions(width=100))
    assert text.startswith("SAME")
    assert "not recorded: start both runs with megatrace run" in text


def test_the_environment_is_kept_without_secrets(tmp_path: Path) -> None:
    told = surroundings(
        {
            "NCCL_DEBUG": "INFO",
            "HOME": "/h",
            "NCCL_AUTH_TOKEN": "x",
            "SLURM_JOB_NODELIST": "gpu[08-10,12],login1",
        },
        tmp_path,
    )
    assert told["environment"] == {"NCCL_DEBUG": "INFO"}
    assert told["nodes"] == ["gpu08", "gpu09", "gpu10", "gpu12", "login1"]


@pytest.mark.parametrize("text", ["node[1-", "[", "a[9-1]", "node[-]", "", "x[1-999999999]"])
def test_any_list_of_nodes_ends(text: str) -> None:
    assert len(list(expanded(text))) <= 100_000


def test_the_commit_is_found_without_running_git(tmp_path: Path) -> None:
    git, commit = tmp_path / ".git", "0123456789abcdef" * 2 + "01234567"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{commit} refs/heads/main\n")
    inside = tmp_path / "src"
    inside.mkdir()
    assert commit_of(inside) == commit
    (git / "refs/heads/main").write_text("f" * 40 + "\n")
    assert commit_of(inside) == "f" * 40
    (git / "HEAD").write_text("ref: ../../etc/passwd\n")
    assert commit_of(inside) == ""


def test_settings_are_read_beside_the_recording(tmp_path: Path) -> None:
    told = {
        "config": {"tensor": {"value": 4, "source": "argv"}},
        "command": ["train.py"],
        "environment": {"NCCL_ALGO": "Ring"},
        "commit": "a" * 40,
        "host": "node1",
    }
    (tmp_path / "run.json").write_text(json.dumps(told))
    (tmp_path / "profiles").mkdir()
    found, note = settings_near(tmp_path / "profiles")
    assert note == ""
    assert {(one.area, one.key, one.value) for one in found} == {
        (Area.CONFIGURATION, "tensor", "4"),
        (Area.CONFIGURATION, "command", "train.py"),
        (Area.ENVIRONMENT, "NCCL_ALGO", "Ring"),
        (Area.COMMIT, "commit", "a" * 40),
        (Area.NODES, "node1", "in the job"),
    }


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"config": 3, "environment": [], "nodes": {}, "command": 1}', ""]
)
def test_a_damaged_description_is_a_note_or_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    found, note = settings_near(tmp_path)
    assert found == ()
    assert note == "" or "not compared" in note
