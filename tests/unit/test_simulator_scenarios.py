"""Scenarios from YAML, those that come with MegaTrace, the truth as JSON, and the verb `simulate`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from megatrace.collect.jobconfig import read_job_config
from megatrace.commands.main import main
from megatrace.commands.simulate import job_yaml
from megatrace.errors import ConfigError, TraceError, UnknownName
from megatrace.model.job import ScheduleKind
from megatrace.simulator import (
    Capture,
    LateDeaths,
    Scenario,
    builtin_scenarios,
    load_scenario,
    named_scenario,
    reference,
    simulate,
    with_counterfactual,
)
from megatrace.simulator.answers import _TABLE

TINY = "tp: 2\npp: 2\nmicro_batches: 2\nlayers_per_stage: 1\niterations: 3\n"


def test_a_scenario_reads_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(TINY + "faults:\n  - {fault: slow_gpu, rank: 3, factor: 2.5}\n")
    scenario = load_scenario(path)
    assert scenario.world_size == 4
    assert scenario.faults[0].fault == "slow_gpu"


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ("tp: 0\n", "tp", "greater than or equal to 1"),
        ("tpp: 2\n", "tpp", "Extra inputs"),
        ("faults: [{fault: slow_gpu, rank: x}]\n", "faults.0.slow_gpu.rank", "integer"),
        ("faults: [{fault: slow_gpu, rank: 9}]\n", "scenario", "faults.0.rank is 9, this job has 1"),
        ("faults: [{fault: melted}]\n", "faults.0", "slow_gpu"),
        ("faults: [{rank: 1}]\n", "faults.0", "discriminator"),
        ("pattern: fsdp\ntp: 2\n", "scenario", "data parallelism only"),
        ("dp: 3\nep: 2\n", "scenario", "ep 2 does not divide"),
        ("pp: 2\nvpp: 3\nlayers_per_stage: 4\n", "scenario", "not a multiple of vpp"),
        ("tp: 1000\npp: 100\n", "scenario", "more than the simulator takes"),
        ("- 1\n", "scenario", "mapping"),
        ("a: [\n", "scenario", "mapping"),
    ],
)
def test_a_wrong_scenario_names_its_key(text: str, key: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(word)) as caught:
        load_scenario(path)
    assert caught.value.key == key
    assert str(path) in str(caught.value)


def test_an_unreadable_scenario_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        load_scenario(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot be read"):
        load_scenario(tmp_path / "binary.yaml")


def test_the_scenarios_that_come_along_are_whole() -> None:
    known = builtin_scenarios()
    assert {"flagship", "flagship-late-deaths", "healthy", "slow-gpu"} <= set(known)
    for name in known:
        scenario = named_scenario(name)
        assert scenario.name == name
        assert scenario.description.endswith(".")
    with pytest.raises(UnknownName, match="flagship"):
        named_scenario("flagshp")


SEQ = 2 * (3 + 2 + 3 + 1 + 2) + 1
"""Second tensor-parallel call of iteration 1 on the last stage of one layer; iteration 0 made, a micro-batch,
3 broadcasts, 2 all-reduces forward, 3 for the loss, 1 for the output layer and 2 backward."""


def test_the_truth_as_json_is_complete() -> None:
    scenario = Scenario.model_validate(
        {**yaml.safe_load(TINY), "faults": [{"fault": "stuck_host", "rank": 2, "iteration": 1}]}
    )
    told = with_counterfactual(simulate(scenario)).truth.as_json()
    again = json.loads(json.dumps(told, allow_nan=False))
    assert again["schema"] == "megatrace.truth/1"
    assert again["verdict"] == "hang"
    assert again["iteration_ms"][1:] == [None, None]
    assert len(again["counterfactual_ms"]) == 3
    fault = again["faults"][0]
    assert fault["kind"] == "hang_host"
    assert fault["culprits"]["ranks"] == [2]
    assert set(fault["answers"]) == {"ring", "text"}
    assert fault["where"] == {
        "stage": 1, "micro_batch": 0, "phase": "forward", "op": "BROADCAST", "seq": SEQ, "peer": None,
    }  # fmt: skip
    assert fault["positive"] is True
    assert len(again["work_ms"]) == 4


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(arguments)
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_the_verb_writes_logs_and_the_truth_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(TINY + "faults:\n  - {fault: stuck_host, rank: 2, iteration: 1}\n")
    logs = tmp_path / "out" / "logs"
    code, out, _ = run(["simulate", str(path), "--out", str(logs), "--dialect", "opCount"], capsys)
    assert code == 0
    assert sorted(item.name for item in logs.iterdir()) == [f"rank_{rank}.log" for rank in range(4)]
    truth = json.loads((logs.parent / "truth.json").read_text())
    assert truth["faults"][0]["culprits"]["ranks"] == [2]
    assert yaml.safe_load((logs.parent / "job.yaml").read_text())["parallel"]["tensor"] == 2
    assert "hang_host of rank 2" in out
    code, _, err = run(["simulate", str(path), "--out", str(logs)], capsys)
    assert code == 2
    assert "not empty" in err


def test_the_verb_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate"], capsys)[0] == 2
    code, _, err = run(["simulate", "healthy"], capsys)
    assert (code, "--out" in err) == (2, True)
    code, _, err = run(["simulate", "helthy", "--out", str(tmp_path / "x")], capsys)
    assert (code, "healthy" in err) == (2, True)
    code, out, _ = run(["simulate", "--list"], capsys)
    assert code == 0
    assert "flagship-late-deaths" in out


def test_another_seed_is_another_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(TINY)
    texts: list[bytes] = []
    for seed in ("1", "2", "1"):
        logs = tmp_path / f"out{len(texts)}" / "logs"
        assert run(["simulate", str(path), "--out", str(logs), "--seed", seed], capsys)[0] == 0
        texts.append((logs / "rank_1.log").read_bytes())
    assert texts[0] == texts[2]
    assert texts[0] != texts[1]


def test_every_key_of_a_scenario_is_explained() -> None:
    assert list(reference.KEYS) == list(Scenario.model_fields)
    assert list(reference.CAPTURE_KEYS) == list(Capture.model_fields)
    page = reference.reference_page()
    for model in reference.fault_models():
        assert f"### {model.model_fields['fault'].default}\n" in page
        assert model in _TABLE or model is LateDeaths


def test_the_declared_configuration_reads_back(tmp_path: Path) -> None:
    scenario = Scenario(tp=2, pp=2, vpp=2, micro_batches=2, iterations=2)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job_yaml(scenario)))
    config = read_job_config(path)
    assert config.world_size is not None
    assert config.world_size.value == 4
    assert config.virtual is not None
    assert config.virtual.value == 2
    assert config.schedule is not None
    assert config.schedule.value is ScheduleKind.INTERLEAVED
