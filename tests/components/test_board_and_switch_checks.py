"""The checks of boards and switches on real controllers and a real SNMP agent, broken on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.check_runner import run_inline
from megatrace.bot.checks import CHECKS
from megatrace.bot.counters import Counters
from megatrace.bot.inspecting import catalogue
from megatrace.bot.targets import TargetSystem
from megatrace.commands.main import main
from megatrace.model.check import CheckResult, Outcome, Scope
from tests.components.ipmi_bmc import AC_LOST, USER, Controller
from tests.components.redfish_bmc import CHASSIS, GOOD, LOG, Service
from tests.components.snmp_switch import IN_ERRORS, OPER, SPEED, Switch


def look(
    name: str, scope: Scope, template: Mapping[str, object], counters: Counters | None = None
) -> dict[str, CheckResult]:
    """One round of the checks of a scope."""
    wanted = select(catalogue(), scopes=(scope,))
    results = run_inline(
        wanted, TargetSystem(name), CHECKS, counters=counters or Counters(), template=template
    )
    return {result.check: result for result in results}


@pytest.mark.bmc
@pytest.mark.xdist_group("ipmi")
class TestIpmi:
    @pytest.fixture
    def template(self, ipmi_bmc: Controller) -> dict[str, object]:
        ipmi_bmc.heal()
        password = str(ipmi_bmc.place / "password")
        return {
            "bmc.ipmi": f"127.0.0.1:{ipmi_bmc.port}",
            "bmc.cipher": 3,
            "bmc.user": USER,
            "bmc.password_file": password,
        }

    def test_a_healthy_board_is_silent(self, template: dict[str, object]) -> None:
        found = look("node188", Scope.BMC, template)
        outcomes = {name: result.outcome for name, result in found.items()}
        assert outcomes.pop("VER-03") is Outcome.SKIPPED  # firmware is asked through Redfish only
        assert outcomes == dict.fromkeys(("BMC-01", "BMC-02", "BMC-03", "BMC-04"), Outcome.OK)

    def test_a_dead_fan_and_a_lost_input_are_named(
        self, ipmi_bmc: Controller, template: dict[str, object]
    ) -> None:
        ipmi_bmc.set("FAN_5", 5)
        ipmi_bmc.set("PS3 Status", AC_LOST)
        ipmi_bmc.shows("FAN_5", "| lcr |")
        ipmi_bmc.shows("PS3 Status", "Power Supply AC lost")
        found = look("node188", Scope.BMC, template)
        named = {finding.culprits.devices[0].device for finding in found["BMC-01"].findings}
        assert named == {"FAN_5", "PS3 Status"}
        logged = {finding.culprits.devices[0].device: finding for finding in found["BMC-02"].findings}
        assert set(logged) == {"FAN_5", "PS3 Status"}
        assert "power supply fault" in logged["PS3 Status"].summary
        assert logged["PS3 Status"].culprits.nodes == ("node188",)
        ipmi_bmc.heal()

    def test_warm_air_is_told_before_the_board_says_so(
        self, ipmi_bmc: Controller, template: dict[str, object]
    ) -> None:
        ipmi_bmc.set("Inlet Temp", 35)
        ipmi_bmc.shows("Inlet Temp", "35 degrees C")
        found = look("node188", Scope.BMC, template)
        assert found["BMC-01"].outcome is Outcome.OK
        assert "35 °C" in found["BMC-04"].findings[0].summary
        ipmi_bmc.heal()

    def test_a_controller_that_is_not_there_is_unknown(self, template: dict[str, object]) -> None:
        found = look("node188", Scope.BMC, template | {"bmc.ipmi": "127.0.0.1:9"})
        assert found["BMC-01"].outcome is Outcome.UNKNOWN
        assert found["BMC-03"].outcome is Outcome.WARN


@pytest.mark.bmc
@pytest.mark.xdist_group("redfish")
class TestRedfish:
    def test_a_healthy_board_is_silent(self, redfish_board: Service) -> None:
        found = look("node188", Scope.BMC, {"bmc.redfish": redfish_board.url})
        assert {result.outcome for result in found.values()} == {Outcome.OK}

    def test_faults_are_named_with_their_serial_numbers(self, redfish_board: Service) -> None:
        bad = {"State": "Enabled", "Health": "Critical"}
        power = redfish_board.ask(f"{CHASSIS}/Power")
        power["PowerSupplies"][2]["Status"] = bad
        power["PowerSupplies"][3]["Status"] = {"State": "Absent"}
        redfish_board.change(f"{CHASSIS}/Power", power)
        thermal = redfish_board.ask(f"{CHASSIS}/Thermal")
        thermal["Fans"][4]["Status"] = bad
        redfish_board.change(f"{CHASSIS}/Thermal", thermal)
        found = look("node188", Scope.BMC, {"bmc.redfish": redfish_board.url})["BMC-01"]
        by_name = {finding.culprits.devices[0].device: finding for finding in found.findings}
        assert set(by_name) == {"PSU 3", "FAN_5"}
        assert by_name["PSU 3"].evidence[0].text == "serial number PS0003"

    def test_a_leak_is_p0_and_the_log_is_read(self, redfish_board: Service) -> None:
        leaks = f"{CHASSIS}/ThermalSubsystem/LeakDetection/LeakDetectors"
        chassis = redfish_board.ask(CHASSIS) | {
            "ThermalSubsystem": {"@odata.id": f"{CHASSIS}/ThermalSubsystem"}
        }
        redfish_board.change(CHASSIS, chassis)
        redfish_board.change(
            f"{CHASSIS}/ThermalSubsystem",
            {"LeakDetection": {"@odata.id": f"{CHASSIS}/ThermalSubsystem/LeakDetection"}},
        )
        redfish_board.change(
            f"{CHASSIS}/ThermalSubsystem/LeakDetection", {"LeakDetectors": {"@odata.id": leaks}}
        )
        redfish_board.change(leaks, {"Members": [{"@odata.id": f"{leaks}/1"}]})
        redfish_board.change(
            f"{leaks}/1", {"Id": "1", "Name": "Tray leak 1", "DetectorState": "Critical", "Status": GOOD}
        )
        old = {
            "Id": "7",
            "Created": "2020-01-01T00:00:00Z",
            "Severity": "Critical",
            "Message": "Thermal Trip",
        }
        redfish_board.change(f"{LOG}/Entries", {"Members": [{"@odata.id": f"{LOG}/Entries/7", **old}]})
        found = look("node188", Scope.BMC, {"bmc.redfish": redfish_board.url})
        assert [finding.severity.name for finding in found["BMC-04"].findings] == ["P0"]
        assert found["BMC-02"].outcome is Outcome.OK  # an event of 2020 is history


@pytest.mark.snmp
@pytest.mark.xdist_group("snmp")
class TestSwitch:
    @pytest.fixture
    def template(self, snmp_switch: Switch, tmp_path: Path) -> dict[str, object]:
        login = tmp_path / "login"
        login.write_text(f"community: {snmp_switch.community}\n")
        login.chmod(0o600)
        return {"switch.address": snmp_switch.address, "switch.login": str(login)}

    def test_a_healthy_switch_is_silent(self, template: dict[str, object]) -> None:
        found = look("leaf1", Scope.SWITCH, template)
        assert {result.outcome for result in found.values()} == {Outcome.OK}

    def test_a_port_that_goes_down_names_both_ends(
        self, snmp_switch: Switch, template: dict[str, object]
    ) -> None:
        snmp_switch.set(OPER, 12, "i", 2)
        snmp_switch.set(SPEED, 3, "u", 100_000)
        try:
            found = look("leaf1", Scope.SWITCH, template)["SW-01"]
        finally:
            snmp_switch.set(OPER, 12, "i", 1)
            snmp_switch.set(SPEED, 3, "u", 400_000)
        links = {finding.culprits.devices[0].device: finding.culprits.links[0] for finding in found.findings}
        assert set(links) == {"swp12", "swp3"}
        assert links["swp12"].src.device == "leaf1/swp12"
        assert (links["swp12"].dst.node, links["swp12"].dst.device) == ("node188", "mlx5_4")

    def test_the_command_asks_a_switch_by_its_template(
        self,
        snmp_switch: Switch,
        template: dict[str, object],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        file = tmp_path / "leaf1.yaml"
        address, login = template["switch.address"], template["switch.login"]
        file.write_text(f'switch: {{address: "{address}", login: {login}, ports: [swp1, swp12]}}\n')
        ask = ["inspect", "--scope", "switch", "--name", "leaf1", "--template", str(file)]
        ask += ["--state", str(tmp_path / "state.json")]
        assert main(ask) == 0
        snmp_switch.set(OPER, 12, "i", 2)
        try:
            assert main(ask) == 10
        finally:
            snmp_switch.set(OPER, 12, "i", 1)
        assert "port swp12 is down (cable to node188/mlx5_4)" in " ".join(capsys.readouterr().out.split())

    def test_errors_count_by_their_growth(self, snmp_switch: Switch, template: dict[str, object]) -> None:
        counters = Counters()
        snmp_switch.set(IN_ERRORS, 5, "u", 70_000)
        assert look("leaf1", Scope.SWITCH, template, counters)["SW-02"].outcome is Outcome.OK
        snmp_switch.set(IN_ERRORS, 5, "u", 75_000)
        try:
            found = look("leaf1", Scope.SWITCH, template, counters)["SW-02"]
        finally:
            snmp_switch.set(IN_ERRORS, 5, "u", 0)
        assert [finding.culprits.devices[0].device for finding in found.findings] == ["swp5"]
        assert "5,000 frames with errors" in found.findings[0].summary

    def test_a_login_file_that_others_can_read_is_refused(
        self, snmp_switch: Switch, template: dict[str, object]
    ) -> None:
        Path(str(template["switch.login"])).chmod(0o644)
        found = look("leaf1", Scope.SWITCH, template)["SW-01"]
        assert found.outcome is Outcome.UNKNOWN
        assert "chmod 600" in found.reason
