"""What a job is told to be, found from how it is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from megatrace.collect.capture import capture, job_file, refine
from megatrace.collect.frameworks import count_of, rank_of
from megatrace.collect.jobconfig import parse_job_config
from megatrace.model.job import JobConfig, ScheduleKind

MEGATRON = [
    "torchrun",
    "--nproc_per_node",
    "8",
    "--nnodes=4",
    "pretrain_gpt.py",
    "--tensor-model-parallel-size",
    "4",
    "--pipeline-model-parallel-size",
    "2",
    "--num-layers",
    "32",
    "--num-layers-per-virtual-pipeline-stage",
    "4",
    "--hidden-size",
    "4096",
    "--seq-length",
    "2048",
    "--micro-batch-size",
    "1",
    "--global-batch-size",
    "512",
    "--sequence-parallel",
    "--use-distributed-optimizer",
    "--bf16",
]


def captured(
    command: str, environment: dict[str, str] | None = None, folder: Path = Path()
) -> dict[str, object]:
    job, _ = capture(command.split(), environment or {}, folder)
    return {name: said.value for name, said in job.declared().items()}


def test_megatron_arguments_are_read_with_their_sources() -> None:
    job, notes = capture(MEGATRON, {}, Path())
    said = job.declared()
    assert notes == ()
    assert {name: value.value for name, value in said.items()} == {
        "world_size": 32,
        "ranks_per_node": 8,
        "tensor": 4,
        "pipeline": 2,
        "data": 4,
        "virtual": 4,
        "micro_batch": 1,
        "global_batch": 512,
        "schedule": ScheduleKind.INTERLEAVED,
        "layers": 32,
        "hidden": 4096,
        "sequence_length": 2048,
        "features": ("distributed_optimizer", "sequence_parallel"),
    }
    assert said["tensor"].source == "argv --tensor-model-parallel-size"
    assert said["world_size"].source == "argv --nnodes × argv --nproc_per_node"
    assert "over" in said["data"].source


def test_what_is_written_reads_back_as_the_same_values() -> None:
    job, _ = capture(MEGATRON, {}, Path())
    again = parse_job_config(job_file(job))
    assert {name: value.value for name, value in again.declared().items()} == {
        name: value.value for name, value in job.declared().items()
    }
    assert "# argv --tensor-model-parallel-size" in job_file(job)


@pytest.mark.parametrize(
    ("command", "world"),
    [
        ("mpirun -np 16 python a.py", 16),
        ("mpirun -n 16 python a.py", 16),
        ("srun -n 24 python a.py", 24),
        ("srun --ntasks=24 python a.py", 24),
        ("torchrun --nproc-per-node=8 a.py", 8),
        ("torchrun --nnodes 1:4 --nproc-per-node=8 a.py", 8),
        ("deepspeed --num_nodes 2 --num_gpus 4 a.py", 8),
        ("python a.py -n 24", None),
        ("torchrun --nproc-per-node=auto a.py", None),
    ],
)
def test_launchers_say_how_many_ranks_there_are(command: str, world: int | None) -> None:
    assert captured(command).get("world_size") == (None if world is None else world)


def test_the_last_of_two_arguments_counts_as_the_parsers_have_it() -> None:
    assert captured("a.py --micro-batch-size 1 --micro-batch-size=4")["micro_batch"] == 4


def test_deepspeed_json_is_read_and_arguments_override_it(tmp_path: Path) -> None:
    values = {
        "train_batch_size": 256,
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 3},
    }
    (tmp_path / "ds.json").write_text(json.dumps(values), "utf-8")
    job, notes = capture(["deepspeed", "a.py", "--deepspeed_config", "ds.json"], {}, tmp_path)
    assert notes == ()
    assert job.global_batch is not None
    assert job.global_batch.source == "ds.json: train_batch_size"
    assert job.micro_batch is None
    assert job.features is not None
    assert job.features.value == ("zero3",)
    found = captured("a.py --deepspeed_config ds.json --global-batch-size 8", folder=tmp_path)
    assert found["global_batch"] == 8


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the standard library reads TOML from Python 3.11 on")
def test_torchtitan_toml_is_read_and_minus_one_is_no_size(tmp_path: Path) -> None:
    (tmp_path / "llama.toml").write_text(
        "[parallelism]\ntensor_parallel_degree = 2\npipeline_parallel_degree = 4\n"
        'data_parallel_shard_degree = -1\npipeline_parallel_schedule = "Interleaved1F1B"\n'
        "[training]\nlocal_batch_size = 8\nseq_len = 8192\n",
        "utf-8",
    )
    environment = {"CONFIG_FILE": "llama.toml", "WORLD_SIZE": "16"}
    found = captured("torchrun train.py --training.seq_len 4096", environment, tmp_path)
    assert found == {
        "tensor": 2,
        "pipeline": 4,
        "data": 2,
        "world_size": 16,
        "micro_batch": 8,
        "sequence_length": 4096,
        "schedule": ScheduleKind.INTERLEAVED,
    }


def test_yaml_of_megatron_and_overrides_of_hydra_are_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "model_parallel:\n  tensor_model_parallel_size: 2\n  sequence_parallel: true\n", "utf-8"
    )
    found = captured("a.py --yaml-cfg c.yaml model.pipeline_model_parallel_size=4", folder=tmp_path)
    assert (found["tensor"], found["pipeline"]) == (2, 4)
    assert found["features"] == ("sequence_parallel",)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"[" * 100_000, b"12"])
def test_a_file_that_is_none_is_a_note_and_the_job_starts(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ds.json").write_bytes(content)
    job, notes = capture(["a.py", "--deepspeed_config", "ds.json"], {}, tmp_path)
    assert job == JobConfig()
    assert len(notes) == (0 if content == b"12" else 1)


def test_a_file_that_is_not_there_is_a_note() -> None:
    _, notes = capture(["a.py", "--deepspeed_config", "nowhere.json"], {}, Path("/nonexistent"))
    assert notes == (
        "/nonexistent/nowhere.json: cannot be read for the configuration: No such file or directory",
    )


def test_arguments_of_a_rank_add_what_the_launch_did_not_show() -> None:
    job, _ = capture(["bash", "train.sh"], {"WORLD_SIZE": "8"}, Path())
    refined = refine(job, ["train.py", "--tensor-model-parallel-size", "2"], {"WORLD_SIZE": "16"}, Path())
    assert refined.tensor is not None
    assert refined.world_size is not None
    assert (refined.tensor.value, refined.world_size.value) == (2, 8)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"RANK": "3", "SLURM_PROCID": "0"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "5", "SLURM_PROCID": "0"}, 5),
        ({"SLURM_PROCID": "7"}, 7),
        ({"PMI_RANK": "2"}, 2),
        ({"RANK": "", "PMI_RANK": "2"}, 2),
        ({"RANK": "-1"}, None),
        ({}, None),
    ],
)
def test_the_rank_is_where_the_launcher_put_it(environment: dict[str, str], rank: int | None) -> None:
    assert rank_of(environment) == rank


@pytest.mark.parametrize("value", [True, 0, -1, 2.0, "auto", "", "1e3", None, "9" * 5000, 10_000_001, "٣"])
def test_what_is_no_positive_count_is_left_out(value: object) -> None:
    assert count_of(value) is None


def test_one_task_of_slurm_says_nothing_of_the_job() -> None:
    assert "world_size" not in captured("torchrun a.py", {"SLURM_NTASKS": "1"})
    assert captured("python a.py", {"SLURM_NTASKS": "64"})["world_size"] == 64
