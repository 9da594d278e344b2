"""Many machines at once: reached by programs, compared with each other, grouped by what they share."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from megatrace import __version__
from megatrace.bot.catalogue import select
from megatrace.bot.fleet import ask, ask_all, command, read
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import machine
from megatrace.commands.fleet import read_inventory
from megatrace.commands.main import main
from megatrace.errors import MegatraceError
from megatrace.model.check import CheckResult, Inspection, Outcome
from megatrace.model.fleet import Asked, outliers, together
from megatrace.model.inventory import Inventory, Parent, from_slurm_topology, from_table
from megatrace.reports.inspection import as_json

FEW = select(catalogue(), names=("IB-01", "NVL-01"))


def look(node: str, *, dark: bool = False, down: bool = False) -> Inspection:
    made = machine("h100-ib")
    if dark:
        made.dark[3, 7] = "<inactive>"
    if down:
        made.ports[2].state, made.ports[2].physical = "1: DOWN", "2: Polling"
    return replace(inspect_recording(written(made), FEW), node=node)


WELL, DARK, DOWN = (look("x"), look("x", dark=True), look("x", down=True))


def fleet_of(count: int, dark: tuple[int, ...] = (), down: tuple[int, ...] = ()) -> list[Asked]:
    return [
        Asked(
            f"n{number}",
            replace(DARK if number in dark else DOWN if number in down else WELL, node=f"n{number}"),
        )
        for number in range(count)
    ]


LEAVES = from_table({f"n{number}": {"leaf": f"leaf{number // 4}", "hall": "a"} for number in range(16)})


class TestStorms:
    def test_machines_below_one_leaf_are_one_storm(self) -> None:
        found = together(fleet_of(16, dark=(9,), down=(4, 5, 7)), LEAVES)
        (storm,) = found.storms
        assert (storm.check, storm.parent, storm.nodes) == (
            "IB-01",
            Parent("leaf", "leaf1"),
            ("n4", "n5", "n7"),
        )
        assert [(node, result.check) for node, result, _ in found.single] == [("n9", "NVL-01")]
        assert found.exit_code == 10

    def test_machines_here_and_there_are_no_storm(self) -> None:
        found = together(fleet_of(16, down=(1, 6, 11)), LEAVES)
        assert found.storms == ()
        assert len(found.single) == 3

    def test_half_the_fleet_is_a_storm_even_if_nobody_knows_why(self) -> None:
        found = together(fleet_of(8, down=(0, 1, 2, 3, 4, 5)))
        assert [(storm.check, storm.parent) for storm in found.storms] == [("IB-01", None)]

    def test_the_smallest_group_that_explains_is_named(self) -> None:
        inventory = Inventory(
            {Parent("hall", "a"): frozenset("abcdefgh"), Parent("psu", "3"): frozenset("abcd")}
        )
        assert inventory.common("abc", "abcdefghij") == Parent("psu", "3")
        assert inventory.common("ab", "abcdefghij") is None
        assert inventory.common("abcde", "abcdefghij") == Parent("hall", "a")
        assert inventory.common("abcdefgh", "abcdefgh") is None  # no difference explained


class TestOutliers:
    def measured(self, *values: float) -> list[Inspection]:
        result = CheckResult("GPU-26", Outcome.OK, measured={"gemm.tflops": 0.0})
        return [
            replace(WELL, node=f"n{number}", results=(replace(result, measured={"gemm.tflops": value}),))
            for number, value in enumerate(values)
        ]

    def test_one_that_is_slower_than_its_peers(self) -> None:
        (found,) = outliers(self.measured(640, 642, 638, 641, 560, 639))
        assert (found.node, found.value, found.median) == ("n4", 560, 639.5)

    def test_small_differences_and_small_fleets_are_none(self) -> None:
        assert outliers(self.measured(640, 640, 640, 640, 640, 625)) == []
        assert outliers(self.measured(640, 640, 320)) == []


class TestAsking:
    def test_what_is_no_inspection_is_told_and_never_raised(self) -> None:
        assert read("n1", as_json(WELL, __version__).encode()).inspection is not None
        for answer in (b"", b"[]", b"{}", b'{"results": [1]}', b"\xff", b"[" * 100_000):
            assert "no inspection" in read("n1", answer).problem

    def test_a_machine_that_does_not_answer_does_not_stop_the_others(self, tmp_path: Path) -> None:
        good = tmp_path / "good.json"
        good.write_text(as_json(WELL, __version__))
        commands = {f"n{number}": ["cat", str(good)] for number in range(30)}
        commands |= {"hung": ["sleep", "60"], "gone": ["false"], "none": ["/nowhere/ssh"]}
        told: list[tuple[int, int]] = []
        found = ask_all(commands, lambda done, of: told.append((done, of)), at_once=16, limit_s=3)
        assert [item.node for item in found] == list(commands)
        assert told[-1] == (33, 33)
        problems = {item.node: item.problem for item in found if item.inspection is None}
        assert set(problems) == {"hung", "gone", "none"}
        assert "no answer within 3 s" in problems["hung"]
        assert together(found).exit_code == 11

    def test_the_last_line_of_an_error_is_told(self) -> None:
        assert ask("n1", ["sh", "-c", "echo one >&2; echo refused >&2; exit 255"]).problem == "refused"

    def test_a_name_is_never_an_option(self) -> None:
        argv = command("-oProxyCommand=x", "ssh", ["megatrace"])
        assert argv[argv.index("--") + 1] == "-oProxyCommand=x"
        assert command("n1", "srun", ["megatrace"])[-3:] == ["n1", "--", "megatrace"]


class TestInventory:
    def test_a_file_with_short_forms(self, tmp_path: Path) -> None:
        path = tmp_path / "inventory.yaml"
        path.write_text("node[01-03]: {rack: r1, leaf: [leaf1, leaf2]}\nnode04: {rack: r2}\n")
        found = read_inventory(path).members
        assert found[Parent("rack", "r1")] == {"node01", "node02", "node03"}
        assert found[Parent("leaf", "leaf2")] == {"node01", "node02", "node03"}

    def test_slurms_topology(self, tmp_path: Path) -> None:
        path = tmp_path / "topology"
        path.write_text(
            "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=node[1-2]\n"
            "SwitchName=spine Level=1 LinkSpeed=1 Nodes=node[1-4] Switches=leaf[1-2]\n"
            "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=node3,node4\n"
        )
        found = read_inventory(path).members
        assert found == {
            Parent("leaf", "leaf1"): {"node1", "node2"},
            Parent("leaf", "leaf2"): {"node3", "node4"},
        }
        assert from_slurm_topology("").members == {}

    @pytest.mark.parametrize("text", ["- 1\n", "a: [\n"])
    def test_nonsense_is_one_sentence(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(MegatraceError):
            read_inventory(tmp_path / "bad.yaml")


class TestCommand:
    @pytest.fixture
    def ssh(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A program in ssh's place that prints what the machine of that name would."""
        for name, inspection in (("well", WELL), ("down", DOWN)):
            (tmp_path / name).write_text(as_json(inspection, __version__))
        program = tmp_path / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(
            '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\ncase "$2" in\n'
            f"n[4-7]) cat {tmp_path}/down ;;\nn9) echo refused >&2; exit 255 ;;\n"
            f"*) cat {tmp_path}/well ;;\nesac\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        inventory = tmp_path / "inventory.yaml"
        inventory.write_text("n[0-3]: {leaf: leaf0}\nn[4-7]: {leaf: leaf1}\nn[8-15]: {leaf: leaf2}\n")
        return inventory

    def test_sixteen_machines(self, ssh: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", "--nodes", "n[0-15]", "--inventory", str(ssh)]) == 10
        said = " ".join(capsys.readouterr().out.split())
        assert "16 machines: 11 well, 4 sick, 1 silent" in said
        assert "IB-01 on 4 machines, all below leaf leaf1: n4, n5, n6, n7" in said
        assert "n9: refused" in said

    def test_as_json(self, ssh: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", "--nodes", "n[0-3],n9", "--format", "json"]) == 11
        said = json.loads(capsys.readouterr().out)
        assert said["counts"] == {"well": 4, "silent": 1}
        assert said["silent"] == [{"node": "n9", "reason": "refused"}]

    def test_no_name_is_wrong_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", "--nodes", ""]) == 2
        assert "names no machine" in capsys.readouterr().err
