"""The real components that other tests lean on behave as those tests believe, faults included."""

from __future__ import annotations

import pytest

from tests.components.ipmi_bmc import AC_LOST, Controller
from tests.components.prometheus_server import MetricServer
from tests.components.redfish_bmc import CHASSIS, SYSTEM, Service
from tests.components.snmp_switch import NAME, OPER, Switch


@pytest.mark.prometheus
@pytest.mark.xdist_group("prometheus")
class TestPrometheus:
    def test_a_metric_of_another_machine_reaches_the_server(self, prometheus: MetricServer) -> None:
        prometheus.publish("dcgm", 'DCGM_FI_DEV_XID_ERRORS{gpu="1",Hostname="node188"} 79\n')
        found = prometheus.wait_for("DCGM_FI_DEV_XID_ERRORS == 79")
        assert found[0]["metric"]["Hostname"] == "node188"
        assert prometheus.wait_for('ALERTS{alertname="GpuXid"}')[0]["metric"]["severity"] == "P0"

    def test_the_exporter_tells_of_this_machine(self, prometheus: MetricServer) -> None:
        assert "node_uname_info{" in prometheus.scrape()


@pytest.mark.bmc
@pytest.mark.xdist_group("ipmi")
class TestIpmi:
    def test_a_board_shows_its_sensors(self, ipmi_bmc: Controller) -> None:
        ipmi_bmc.heal()
        shown = ipmi_bmc.ask("sdr", "elist")
        assert "FAN_5            | 01h | ok  | 29.1 | 6000 RPM" in shown
        assert "Presence detected" in shown

    def test_a_broken_fan_and_a_lost_input_are_written_into_the_log(self, ipmi_bmc: Controller) -> None:
        ipmi_bmc.heal()
        ipmi_bmc.set("FAN_5", 5)
        ipmi_bmc.set("PS3 Status", AC_LOST)
        ipmi_bmc.shows("FAN_5", "| lcr |")
        ipmi_bmc.shows("PS3 Status", "Power Supply AC lost")
        log = ipmi_bmc.ask("sel", "elist")
        assert "Fan FAN_5 | Lower Critical going low" in log
        assert "PS3 Status | Power Supply AC lost | Asserted" in log
        ipmi_bmc.heal()

    def test_power_follows(self, ipmi_bmc: Controller) -> None:
        assert "on" in ipmi_bmc.ask("power", "status")
        ipmi_bmc.ask("power", "off")
        assert "off" in ipmi_bmc.ask("power", "status")
        ipmi_bmc.ask("power", "on")


@pytest.mark.bmc
@pytest.mark.xdist_group("redfish")
class TestRedfish:
    def test_a_system_has_a_power_state(self, redfish_power: Service) -> None:
        assert redfish_power.ask(f"/redfish/v1/Systems/{SYSTEM}")["PowerState"] in ("On", "Off")

    def test_a_board_can_be_broken(self, redfish_board: Service) -> None:
        power = redfish_board.ask(f"{CHASSIS}/Power")
        assert [supply["Status"]["Health"] for supply in power["PowerSupplies"]] == ["OK"] * 4
        power["PowerSupplies"][2]["Status"] = {"State": "Enabled", "Health": "Critical"}
        redfish_board.change(f"{CHASSIS}/Power", power)
        assert redfish_board.ask(f"{CHASSIS}/Power")["PowerSupplies"][2]["Status"]["Health"] == "Critical"


@pytest.mark.snmp
@pytest.mark.xdist_group("snmp")
class TestSwitch:
    def test_a_port_goes_down_and_comes_back(self, snmp_switch: Switch) -> None:
        assert snmp_switch.get(f"{NAME}.12") == "swp12"
        assert snmp_switch.get(f"{OPER}.12") == "1"
        snmp_switch.set(OPER, 12, "i", 2)
        assert snmp_switch.get(f"{OPER}.12") == "2"
        snmp_switch.set(OPER, 12, "i", 1)
        assert snmp_switch.get(f"{OPER}.12") == "1"
