"""A real node_exporter and a real Prometheus that scrapes it; metrics of machines that are not here are a
text file."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.components.daemons import connects, free_port, installed, running, wait_until

RULES = """
groups:
- name: test
  rules:
  - alert: GpuXid
    expr: DCGM_FI_DEV_XID_ERRORS == 79
    labels: {severity: P0}
"""


@dataclass(frozen=True, slots=True)
class MetricServer:
    """``url`` of Prometheus, ``exporter`` of node_exporter; ``folder`` is where its textfile collector
    looks."""

    url: str
    exporter: str
    folder: Path

    def publish(self, name: str, text: str) -> None:
        """Metrics in the exposition format, seen at the next scrape. Written in one step, as its
        documentation asks."""
        temporary = self.folder / f"{name}.part"
        temporary.write_text(text, "utf-8")
        temporary.replace(self.folder / f"{name}.prom")

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return list(json.load(answer)["data"]["result"])

    def scrape(self) -> str:
        """What node_exporter says now."""
        with urllib.request.urlopen(f"{self.exporter}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def wait_for(self, query: str) -> list[dict[str, Any]]:
        """The result of a query as soon as it is not empty."""
        wait_until(lambda: bool(self.ask(query)), f"an answer to {query}")
        return self.ask(query)


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetricServer]:
    """node_exporter and Prometheus, scraping once a second."""
    server = installed("prometheus", package="prometheus")
    exporter = installed("prometheus-node-exporter", package="prometheus-node-exporter")
    place = tmp_path_factory.mktemp("prometheus")
    folder = place / "textfile"
    folder.mkdir()
    ports = free_port(), free_port()
    target = f"127.0.0.1:{ports[0]}"
    (place / "rules.yml").write_text(RULES)
    (place / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: node, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    collect = [
        f"--web.listen-address={target}",
        "--collector.disable-defaults",
        "--collector.textfile",
        "--collector.uname",
        f"--collector.textfile.directory={folder}",
    ]
    serve = [
        f"--config.file={place / 'prometheus.yml'}",
        f"--storage.tsdb.path={place / 'data'}",
        f"--web.listen-address=127.0.0.1:{ports[1]}",
    ]
    found = MetricServer(f"http://127.0.0.1:{ports[1]}", f"http://{target}", folder)

    def up() -> bool:
        with suppress(OSError, ValueError):
            return bool(found.ask('up{job="node"} == 1'))
        return False

    with (
        running([exporter, *collect], lambda: connects(ports[0]), place / "exporter.log"),
        running([server, *serve], up, place / "prometheus.log"),
    ):
        yield found
