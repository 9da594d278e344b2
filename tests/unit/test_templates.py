"""Templates of machine types: inheritance, learning by majority, comparing, trying in shadow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.check_runner import run_inline
from megatrace.bot.checks import CHECKS
from megatrace.bot.comparison import Differs, compare
from megatrace.bot.counters import Counters
from megatrace.bot.facts import Facts, collect
from megatrace.bot.facts_devices import Value
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.look import Look
from megatrace.bot.recorded_system import RecordedSystem, Recorder, Recording
from megatrace.bot.recording import write_recording
from megatrace.bot.shadow import evaluate
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import machine
from megatrace.bot.templates import as_yaml, flatten, learn, load, names
from megatrace.commands.main import main
from megatrace.errors import ConfigError, UnknownName, UsageError
from megatrace.model.check import CheckResult, Outcome
from megatrace.model.system import Ran, Why

FEW = select(catalogue(), names=("GPU-18", "VER"))


def made(kind: str = "h100-roce", name: str = "node188", **files: str) -> Recording:
    recording = written(machine(kind))
    recording.name = name
    recording.files |= {path.replace("__", "/"): text for path, text in files.items()}
    return recording


def facts(recording: Recording) -> Facts:
    system = RecordedSystem(recording)
    return collect(Look(select(catalogue(), names=("CFG-01",))[0], system, system.now()))


def result(recording: Recording, check: str, template: dict[str, object]) -> CheckResult:
    return inspect_recording(recording, select(catalogue(), names=(check,)), template=template).results[0]


class TestReading:
    def test_a_template_takes_and_overrides_what_it_inherits(self, tmp_path: Path) -> None:
        (tmp_path / "site.yaml").write_text("inherits: h100-sxm\ngpu: {power_limit_w: 650, mig: null}\n")
        (tmp_path / "rack.yaml").write_text("inherits: site\nlimits: {BMC-04: {inlet_c: 35}}\n")
        flat = load(tmp_path / "rack.yaml")
        assert (flat["gpu.count"], flat["gpu.power_limit_w"], flat["gpu.ecc"]) == (8, 650, "Enabled")
        assert "gpu.mig" not in flat
        assert flat["limits.BMC-04.inlet_c"] == 35

    def test_one_that_inherits_from_itself_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("inherits: b\n")
        (tmp_path / "b.yaml").write_text("inherits: a\n")
        with pytest.raises(ConfigError, match=r"a\.yaml → b\.yaml → a\.yaml"):
            load(tmp_path / "a.yaml")

    @pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "inherits: [x]\n", "!!python/object:os.system {}\n"])
    def test_nonsense_is_one_sentence(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ConfigError):
            load(tmp_path / "bad.yaml")

    def test_an_unknown_name_lists_those_there_are(self) -> None:
        with pytest.raises(UnknownName, match="h100-sxm"):
            load("h100sxm")

    def test_those_that_come_along_fit_healthy_machines(self) -> None:
        assert {"a100-sxm", "h100-sxm", "h200-sxm", "l40s"} <= set(names())
        for kind, name in (("a100-ib", "a100-sxm"), ("h100-ib", "h100-sxm"), ("h200-roce", "h200-sxm"),
                           ("l40s-roce", "l40s")):  # fmt: skip
            found = inspect_recording(made(kind), template=load(name))
            serious = [
                f"{check.check} {finding.summary}"
                for check, finding, _ in found.troubles
                if not check.observed
            ]
            assert serious == []


class TestLearning:
    def test_what_most_share_is_learned_and_what_varies_is_left(self) -> None:
        machines = [
            Facts({"os.kernel": "5.15", "net.mtu.eth0": 9000, "os.id": str(number)}) for number in range(5)
        ]
        machines[3].known["os.kernel"] = "5.4"
        learned, left = learn(machines)
        assert learned == {"os.kernel": "5.15", "net.mtu.eth0": 9000}
        assert left == {"os.id": "5 different values, the most frequent 1 times"}

    def test_two_types_of_machines_are_no_majority(self) -> None:
        machines = [Facts({"gpu.count": 8}) for _ in range(3)] + [Facts({"gpu.count": 4}) for _ in range(2)]
        assert learn(machines)[0] == {}

    def test_two_machines_make_none(self) -> None:
        with pytest.raises(UsageError, match="3 or more"):
            learn([Facts({}), Facts({})])

    def test_a_learned_template_reads_back_and_fits(self, tmp_path: Path) -> None:
        machines = [made(name=f"n{number}") for number in range(3)]
        learned, _ = learn([facts(recording) for recording in machines])
        path = tmp_path / "ours.yaml"
        path.write_text(as_yaml(learned, "ours", "proposed"))
        assert compare(load(path), facts(machines[0])) == []
        assert {"gpu.count", "ib.devices", "sysctl.kernel.numa_balancing", "mounts./train"} <= set(learned)


class TestComparing:
    def test_every_kind_of_difference(self) -> None:
        mounts = {"/data": "nfs4 rw", "/home": "nfs4 rw"}
        tree = {
            "sysctl": {"vm.swappiness": 1},
            "mounts": mounts,
            "gpu": {"count": 8},
            "os": {"kernel": "5.15"},
        }
        known: dict[str, Value] = {
            "sysctl.vm.swappiness": "60",
            "mounts./home": "nfs4 rw",
            "os.kernel": "5.15",
        }
        known["mounts./tmp2"] = "xfs rw"
        found = compare(
            flatten(tree), Facts(known, {"gpu": "nvidia-smi hangs"}, {"sysctl", "mounts", "gpu", "os"})
        )
        assert [(item.kind, item.key) for item in found] == [
            (Differs.DRIFT, "sysctl.vm.swappiness"), (Differs.EXTRA, "mounts./tmp2"),
            (Differs.MISSING, "mounts./data"), (Differs.UNKNOWN, "gpu.count"),
        ]  # fmt: skip

    def test_values_are_compared_and_not_their_spelling(self) -> None:
        template = {"net.mtu.a": 9000, "ib.devices": ["b", "a"], "module.x": "*", "process.cpu_quota": 8}
        known: dict[str, Value] = {
            "net.mtu.a": "9000",
            "ib.devices": ["a", "b"],
            "module.x": "5.1",
            "process.cpu_quota": 8.0,
        }
        assert compare(template, Facts(known, families={"net", "ib", "module", "process"})) == []

    def test_a_container_with_eight_of_many_cores(self) -> None:
        quota = made(__sys__fs__cgroup__cpu_max="x")
        quota.files["/sys/fs/cgroup/cpu.max"] = "800000 100000\n"
        found = result(quota, "CFG-01", {"process.cpu_quota": 192})
        assert found.observed
        assert "process.cpu_quota: 8.0, expected 192" in found.findings[0].summary


class TestChecks:
    def test_another_version_is_told(self) -> None:
        recording = made()
        recording.files["/sys/module/nvidia/version"] = "550.127.08\n"
        assert result(recording, "VER-01", {"versions.driver": "550.127.08"}).outcome is Outcome.OK
        found = result(recording, "VER-01", {"versions.driver": "575.57.08"})
        assert found.findings[0].summary == "versions.driver: 550.127.08, expected 575.57.08"
        assert result(recording, "VER-01", {}).outcome is Outcome.SKIPPED

    def test_a_library_of_another_version_than_the_module(self) -> None:
        recording = made()
        recording.files["/sys/module/nvidia/version"] = "550.127.08\n"
        assert result(recording, "VER-02", {}).outcome is Outcome.OK
        said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.57\n"
        for argv in (("nvidia-smi", "-q", "-x"), ("nvidia-smi", "-q")):
            recording.answer(argv, said, 18)
        found = result(recording, "VER-02", {})
        assert (found.outcome, found.steps[0].value) == (Outcome.FAIL, "A5")

    def qos(self, *classes: str) -> Recording:
        recording = made()
        for number, value in enumerate(classes):
            recording.files[f"/sys/class/infiniband/mlx5_{number}/tc/1/traffic_class"] = (
                f"Global tclass={value}\n"
            )
        return recording

    def test_a_port_outside_the_lossless_class(self) -> None:
        assert result(self.qos("106", "106", "106", "106"), "IB-10", {}).outcome is Outcome.OK
        found = result(self.qos("106", "106", "0", "106"), "IB-10", {})
        assert [finding.culprits.devices[0].device for finding in found.findings] == ["mlx5_2"]
        wanted = {f"roce.traffic_class.mlx5_{number}": 106 for number in range(4)}
        assert len(result(self.qos("0", "0", "0", "0"), "IB-10", dict(wanted)).findings) == 4
        assert len(result(self.qos("106", "106", "0", "106"), "IB-10", dict(wanted)).findings) == 1


class TestShadow:
    def test_a_template_that_accuses_the_fleet_is_held(self) -> None:
        fleet = [made(name=f"n{number}") for number in range(5)]
        old = load("h100-sxm")
        assert not evaluate(fleet, old, old, FEW).held
        found = evaluate(fleet, old | {"gpu.power_limit_w": 750}, old, FEW)
        assert (found.share, found.held) == (1.0, True)
        assert any("GPU-18" in words for words in found.changed[0].new)

    def test_one_machine_of_a_hundred_passes(self) -> None:
        fleet = [made(name=f"n{number}") for number in range(60)]
        for number, recording in enumerate(fleet):
            recording.files["/sys/module/nvidia/version"] = "535.1\n" if number == 7 else "550.127.08\n"
        found = evaluate(fleet, {"versions.driver": "550.127.08"}, {}, FEW)
        assert [item.node for item in found.changed] == ["n7"]
        assert not found.held


class TestCommand:
    def bundles(self, folder: Path, count: int = 3) -> list[str]:
        paths = []
        for number in range(count):
            path = folder / f"n{number}"
            write_recording(made(name=f"n{number}"), path, masked=False)
            paths.append(str(path))
        return paths

    def test_learn_then_diff_then_shadow(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        paths = self.bundles(tmp_path)
        ours = str(tmp_path / "ours.yaml")
        assert main(["template", "learn", *paths, "--out", ours]) == 0
        assert main(["template", "diff", paths[0], "--template", ours]) == 0
        assert "as its template says" in capsys.readouterr().out
        new = tmp_path / "new.yaml"
        new.write_text(f"inherits: {ours}\ngpu: {{power_limit_w: 750}}\n")
        assert main(["template", "diff", paths[1], "--template", str(new)]) == 10
        assert "gpu.power_limit_w: 700, expected 750" in capsys.readouterr().out
        shadow = ["template", "shadow", *paths, "--template", str(new), "--against", ours]
        assert main(shadow) == 10
        assert "HELD  3 of 3 machines" in capsys.readouterr().out
        passed = str(tmp_path / "passed.yaml")
        assert main([*shadow, "--approve", "anna", "--out", passed]) == 0
        assert load(passed)["gpu.power_limit_w"] == 750

    def test_wrong_usage_is_one_sentence(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["template", "learn", *self.bundles(tmp_path, 2)]) == 2
        assert main(["template", "diff"]) == 2
        assert main(["template", "shadow", "--template", "h100-sxm"]) == 2
        assert "3 or more" in capsys.readouterr().err

    def test_show_lists_and_tells(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["template", "show"]) == 0
        assert "8×H200" in capsys.readouterr().out
        assert main(["template", "show", "--template", "h200-sxm"]) == 0
        assert "nvlink.links" in capsys.readouterr().out


class TestFacts:
    def test_a_check_reads_only_what_it_is_about(self) -> None:
        asked: list[tuple[str, ...]] = []

        class Watched(RecordedSystem):
            def run(self, argv: Sequence[str], timeout_s: float = 15.0) -> Ran:
                asked.append(tuple(argv))
                return super().run(argv, timeout_s)

        recording = made()
        system = Watched(recording)
        watched = Look(select(catalogue(), names=("IB-10",))[0], system, system.now())
        assert collect(watched, "sysctl").known["sysctl.kernel.numa_balancing"] == "0"
        assert asked == []
        collect(watched, "versions")
        collect(watched, "versions")
        assert [argv[0] for argv in asked].count("dpkg-query") == 1

    def test_what_cannot_be_read_is_unknown_in_all_its_families(self) -> None:
        recording = made()
        recording.refused["/etc/os-release"] = Why.DENIED
        del recording.files["/etc/os-release"]
        found = facts(recording)
        assert {"os", "cpu", "memory"} <= set(found.unknown)
        assert any(item.kind is Differs.UNKNOWN for item in compare({"cpu.clocksource": "tsc"}, found))

    def test_a_machine_without_gpus_is_not_as_a_template_with_gpus_says(self) -> None:
        found = compare(load("h100-sxm"), facts(made("cpu-ib")))
        assert {item.key for item in found if item.kind is Differs.MISSING} >= {"gpu.count", "gpu.model"}
        assert not any(item.key == "nvlink.links" for item in found)  # tells a check, is no fact

    def test_a_recording_that_was_taken_without_a_template_can_be_compared(self, tmp_path: Path) -> None:
        recorder = Recorder(RecordedSystem(made()))
        run_inline(select(catalogue()), recorder, CHECKS, counters=Counters())
        taken = recorder.recording
        assert not taken.complete
        assert facts(taken).known == facts(made()).known
        assert compare(load("h100-sxm"), facts(taken)) == compare(load("h100-sxm"), facts(made()))
