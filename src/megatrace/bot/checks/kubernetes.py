"""Kubernetes: nodes that are not ready or lost GPUs, and the pods that every GPU node needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from megatrace.bot.checks import check
from megatrace.bot.elsewhere import of_node
from megatrace.bot.look import Look, Problem, Unknown
from megatrace.model.finding import Severity
from megatrace.units import NS_PER_S

NODES = ("kubectl", "get", "nodes", "-o", "json")
DAEMONS = ("kubectl", "get", "daemonsets", "-A", "-o", "json")
NOT_READY_S = 300.0
"""Kubernetes itself waits 300 s (the default toleration of not-ready) before it moves pods away."""
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
NEEDED = ("device-plugin", "dcgm-exporter", "rdma", "network-operator", "cilium", "calico", "flannel", "sriov",
          "gpu-feature-discovery", "mofed")  # fmt: skip
"""Parts of the names of daemon sets without which a GPU node cannot run a job, or cannot be watched."""


def _items(look: Look, command: tuple[str, ...]) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        try:
            return list(json.loads(look.output(*command, timeout_s=20.0))["items"])
        except (ValueError, KeyError, TypeError) as error:
            raise Unknown(f"the answer of {' '.join(command[:3])} makes no sense ({error!r:.60})") from None

    return look.memo(f"kubectl {command[2]}", read)


@check(
    "K8S-01",
    summary="Kubernetes nodes that are not ready, under pressure, or short of GPUs",
    subject="Kubernetes",
    severity="P1",
    step="A1",
    scope="scheduler",
    must=True,
    period_s=60,
    timeout_s=30,
    kind="software",
)
def node_conditions(look: Look) -> Iterator[Problem]:
    """Conditions of every node, and how many GPUs it offers.

    Source: `kubectl get nodes -o json`. Threshold: not Ready for 300 s, the time after which Kubernetes moves
    pods away by itself; any pressure; `nvidia.com/gpu` allocatable below the capacity, or below what the
    template says (`kubernetes.gpus`). A node that is cordoned is somebody's work and only mentioned. Remedy:
    kubelet (`journalctl -u kubelet`); GPUs missing: the device plug-in, then GPU-01 on the node itself."""
    nodes = _items(look, NODES)
    cordoned = 0
    for node in nodes:
        name = str(node["metadata"]["name"])
        status = node.get("status", {})
        conditions = {str(item["type"]): item for item in status.get("conditions", ())}
        cordoned += bool(node.get("spec", {}).get("unschedulable"))
        for problem in (*_not_ready(look, name, conditions), *_gpus(look, name, status)):
            yield of_node(problem, name)
        for kind in PRESSURES:
            if conditions.get(kind, {}).get("status") == "True":
                yield of_node(look.warn(f"{name}: {kind}: {conditions[kind].get('message', '')}"), name)
    look.said = f"{len(nodes)} nodes, {cordoned} cordoned"


def _not_ready(look: Look, name: str, conditions: dict[str, Any]) -> Iterator[Problem]:
    ready = conditions.get("Ready")
    if ready is None:
        yield look.fail(f"{name} reports no condition at all")
    elif ready.get("status") != "True":
        since = _moment(str(ready.get("lastTransitionTime")))
        seconds = (look.now - since) / NS_PER_S if since is not None else NOT_READY_S
        if seconds >= NOT_READY_S:
            said = f"{ready.get('reason', '')}: {ready.get('message', '')}"
            yield look.fail(f"{name} has not been ready for {seconds / 60:,.0f} min ({said})", since=since)


def _gpus(look: Look, name: str, status: dict[str, Any]) -> Iterator[Problem]:
    capacity, usable = (
        int(status.get(key, {}).get("nvidia.com/gpu", 0)) for key in ("capacity", "allocatable")
    )
    expected = look.expected("kubernetes.gpus")
    wanted = int(expected) if isinstance(expected, int | float) and capacity else capacity
    if usable < wanted:
        yield look.fail(
            f"{name} offers {usable} GPUs, expected {wanted}",
            severity=Severity.P1,
            remedy="look at the device plug-in's pod on the node, then at GPU-01 there",
        )


def _moment(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) * NS_PER_S
    except ValueError:
        return None


@check(
    "K8S-02",
    summary="pods that every GPU node needs",
    subject="Kubernetes",
    severity="P1",
    step="A1",
    scope="scheduler",
    period_s=60,
    timeout_s=30,
    kind="software",
    observe=True,
)
def daemon_sets(look: Look) -> Iterator[Problem]:
    """Daemon sets of GPUs and networks whose pods are not all ready.

    Source: `kubectl get daemonsets -A`. Threshold: any pod not ready; a roll-out does this too, so it is only
    watched. Remedy: `kubectl describe` the pod; delete it once."""
    sets = [
        item for item in _items(look, DAEMONS) if any(part in item["metadata"]["name"] for part in NEEDED)
    ]
    for item in sets:
        status = item.get("status", {})
        wanted, ready = int(status.get("desiredNumberScheduled", 0)), int(status.get("numberReady", 0))
        if ready < wanted:
            name = f"{item['metadata'].get('namespace', 'default')}/{item['metadata']['name']}"
            yield look.warn(f"{name}: {ready} of {wanted} pods are ready", device=name, severity=Severity.P1)
    look.said = f"{len(sets)} daemon sets"
