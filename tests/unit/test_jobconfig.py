"""job.yaml and host files: values with their sources, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from megatrace.collect.jobconfig import (
    MAX_BYTES,
    JobFile,
    parse_job_config,
    read_hostfile,
    read_job_config,
    reference_page,
)
from megatrace.errors import ConfigError, UsageError
from megatrace.model.declared import contradictions, layout_of, schedule_of
from megatrace.model.job import JobConfig, ScheduleKind, Sourced
from megatrace.model.layout import ParallelLayout
from megatrace.model.schedule import Schedule

FULL = """
world_size: 16   # a comment
ranks_per_node: 8
parallel: {tensor: 2, pipeline: 2, data: 2, context: 2, expert: 4, virtual: 2}
order: tp-cp-ep-dp-pp
batch: {micro: 1, global: 8}
schedule: interleaved
model: {layers: 24, hidden: 4096, sequence_length: 2048, vocabulary: 50304}
gpu: H100 SXM
features: [sequence_parallel, distributed_optimizer]
"""


def test_every_value_has_its_source() -> None:
    job = parse_job_config(FULL)
    declared = job.declared()
    assert {name: item.value for name, item in declared.items()} == {
        "world_size": 16,
        "ranks_per_node": 8,
        "tensor": 2,
        "pipeline": 2,
        "data": 2,
        "context": 2,
        "expert": 4,
        "virtual": 2,
        "order": "tp-cp-ep-dp-pp",
        "micro_batch": 1,
        "global_batch": 8,
        "schedule": ScheduleKind.INTERLEAVED,
        "layers": 24,
        "hidden": 4096,
        "sequence_length": 2048,
        "vocabulary": 50304,
        "gpu_type": "H100 SXM",
        "features": ("sequence_parallel", "distributed_optimizer"),
    }
    assert declared["tensor"].source == "job.yaml: parallel.tensor"
    assert declared["global_batch"].source == "job.yaml: batch.global"
    assert declared["gpu_type"].source == "job.yaml: gpu"


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "parallel:\n", "world_size:\nbatch: {}\n"])
def test_nothing_declared_is_no_mistake(text: str) -> None:
    assert parse_job_config(text) == JobConfig()


def test_the_file_names_the_source(tmp_path: Path) -> None:
    path = tmp_path / "run7.yaml"
    path.write_text("\ufeffworld_size: 8\n", encoding="utf-8")
    assert read_job_config(path).world_size == Sourced(8, "run7.yaml: world_size")


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ("world_size: 0", "world_size", "a whole number from 1 to 10,000,000"),
        ("world_size: 8.0", "world_size", "a whole number from 1"),
        ("world_size: yes", "world_size", "a whole number from 1"),
        ("world_size: '8'", "world_size", "a whole number from 1"),
        ("world_size: 99999999999999999999", "world_size", "a whole number from 1"),
        ("parallel: {tensor: many}", "parallel.tensor", "a whole number from 1"),
        ("parallel: 7", "parallel", "a mapping with keys tensor, pipeline, data, context, expert, virtual"),
        ("schedule: 1f2b", "schedule", "1f1b, interleaved, gpipe"),
        ("order: tp-dp-pp", "order", "each of tp, cp, ep, dp and pp once"),
        ("order: 3", "order", "each of tp, cp, ep, dp and pp once"),
        ("features: sequence_parallel", "features", "a list of words"),
        ("features: [1]", "features.0", "a list of words"),
        ("gpu: ''", "gpu", "a word"),
        ("[1, 2]", "the whole file", "a mapping with keys world_size, ranks_per_node"),
        ("just words", "the whole file", "a mapping with keys world_size"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(text: str, key: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_job_config(text, path="conf/job.yaml")
    assert raised.value.key == key
    assert allowed in raised.value.allowed
    assert str(raised.value).startswith("conf/job.yaml: ")


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        ("parallel: {tensr: 4}", "parallel.tensr", "did you mean tensor?"),
        ("paralel: {tensor: 4}", "paralel", "did you mean parallel?"),
        ("parallel: {TP: 4}", "parallel.TP", "did you mean tensor?"),
        ("tp: 4", "tp", "did you mean parallel.tensor?"),
        ("parallel: {global: 64}", "parallel.global", "did you mean batch.global?"),
        ("model: {vocab_size: 5}", "model.vocab_size", "did you mean vocabulary?"),
        ("batch: {whole: 5}", "batch.whole", ""),
        ("zzzz: 1\nworld_size: -1", "zzzz", ""),
    ],
)
def test_an_unknown_key_gets_the_one_that_was_meant(text: str, key: str, meant: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_job_config(text)
    assert raised.value.key == key
    assert "one of " in raised.value.allowed
    assert meant in str(raised.value)
    assert ("did you mean" in str(raised.value)) == bool(meant)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("parallel: [", "line 1: not the YAML"),
        ("a: 1\nb: &x 2\nc: *x", "line 3: not the YAML of a configuration: aliases are not allowed"),
        ("a: 1\na: 2", "line 2: not the YAML of a configuration: the key 'a' stands here a second time"),
        ("2026-01-01: 3", "a key must be a word"),
        ("? [a, b]\n: 3", "a key must be a word"),
        ("<<: {world_size: 1}", "a key must be a word"),
        ("world_size: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("\x00", "special characters are not allowed"),
        ("[" * 100_000, "nested too deep"),
        ("world_size: 2026-99-99", "month must be in 1..12"),
    ],
)
def test_what_is_no_configuration_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_job_config(text)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def said(text: str) -> str:
    """What is said about a text; '' where it is right. Any other exception is a bug."""
    try:
        parse_job_config(text)
    except UsageError as error:
        return str(error)
    return ""


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_bytes_give_a_configuration_or_one_sentence(content: bytes) -> None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return
    assert len(said(text)) < 500


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(JobFile.model_fields)), inner)
    ),
    max_leaves=8,
)


@given(json_like)
def test_any_yaml_gives_a_configuration_or_one_sentence(value: object) -> None:
    assert len(said(yaml.safe_dump(value))) < 500


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.yaml: cannot be read: No such file or directory"):
        read_job_config(tmp_path / "no.yaml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_job_config(tmp_path)
    (tmp_path / "log").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text in UTF-8"):
        read_job_config(tmp_path / "log")
    (tmp_path / "big").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        read_job_config(tmp_path / "big")


def hosts(tmp_path: Path, text: str) -> tuple[tuple[str, ...], int | None]:
    path = tmp_path / "hosts"
    path.write_text(text, encoding="utf-8")
    return read_hostfile(path)


def test_host_files_of_mpi_and_deepspeed(tmp_path: Path) -> None:
    text = "# our nodes\nnode-a slots=8\n\nnode-b slots=8  # the new one\n"
    assert hosts(tmp_path, text) == (("node-a", "node-b"), 8)
    assert hosts(tmp_path, "10.0.0.2\n10.0.0.1\r\n") == (("10.0.0.2", "10.0.0.1"), None)


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ("a slots=8\nb slots=4", "slots", "the same slots=N on every line"),
        ("a slots=8\nb", "slots", "the same slots=N on every line"),
        ("a\nb\na", "line 3", "each host once"),
        ("a\nb slots", "line 2", "slots=N after the host"),
        ("a slots=0", "line 1", "slots=N after the host"),
        ("a slots=-1", "line 1", "slots=N after the host"),
        ("a slots=8 max=9", "line 1", "slots=N after the host"),
    ],
)
def test_a_wrong_host_file_names_the_line(tmp_path: Path, text: str, key: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as raised:
        hosts(tmp_path, text)
    assert raised.value.key == key
    assert allowed in raised.value.allowed


def test_a_host_file_without_hosts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no hosts; write one host name a line"):
        hosts(tmp_path, "# nothing\n")


def test_the_layout_and_schedule_of_a_complete_configuration() -> None:
    job = parse_job_config(FULL)
    layout = ParallelLayout(tp=2, pp=2, dp=2, cp=2, ep=4, vpp=2)
    assert layout_of(job) == layout
    assert schedule_of(job) == Schedule(ScheduleKind.INTERLEAVED, 2, 4, 2)
    assert contradictions(job) == ()


def test_data_parallelism_follows_from_the_world() -> None:
    job = parse_job_config("world_size: 16\nparallel: {tensor: 2, pipeline: 4}")
    assert layout_of(job) == ParallelLayout(tp=2, pp=4, dp=2)
    assert schedule_of(job) is None


@pytest.mark.parametrize(
    "text", ["", "world_size: 8", "parallel: {tensor: 2}", "parallel: {tensor: 2, pipeline: 2}"]
)
def test_too_little_gives_no_layout(text: str) -> None:
    job = parse_job_config(text)
    assert layout_of(job) is None
    assert contradictions(job) == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "world_size: 8\nparallel: {tensor: 4, pipeline: 4, data: 1}",
            "job.yaml: world_size is 8, but tensor 4 · pipeline 4 · data 1 = 16.",
        ),
        (
            "world_size: 8\nparallel: {tensor: 3, pipeline: 2}",
            "job.yaml: world_size is 8, no multiple of tensor 3 · pipeline 2 = 6.",
        ),
        (
            "parallel: {tensor: 1, pipeline: 1, data: 4, expert: 3}",
            "job.yaml: parallel.expert is 3, which does not divide data · context = 4.",
        ),
    ],
)
def test_sizes_that_contradict_each_other(text: str, sentence: str) -> None:
    job = parse_job_config(text)
    assert contradictions(job) == (sentence,)
    assert layout_of(job) is None


def test_batches_and_schedules_that_contradict_each_other() -> None:
    job = parse_job_config("world_size: 8\nparallel: {tensor: 2, pipeline: 2}\nbatch: {micro: 2, global: 6}")
    assert contradictions(job) == ("job.yaml: batch.global is 6, no multiple of micro · data = 4.",)
    assert schedule_of(job) is None
    job = parse_job_config("parallel: {virtual: 2}\nschedule: 1f1b")
    assert contradictions(job) == (
        (
            "job.yaml: schedule is 1f1b, but job.yaml: parallel.virtual is 2; "
            "only interleaved has virtual stages."
        ),
    )


def test_the_reference_page_names_every_key_and_its_example_is_true() -> None:
    page = reference_page()
    for name, field in JobFile.model_fields.items():
        assert f"`{name}" in page
        assert field.description is not None
    for key in ("parallel.virtual", "batch.global", "model.sequence_length"):
        assert f"| `{key}` |" in page
    example = page.partition("```yaml\n")[2].partition("```")[0]
    job = parse_job_config(example)
    assert contradictions(job) == ()
    assert layout_of(job) == ParallelLayout(tp=8, pp=5, dp=87)
    assert schedule_of(job) == Schedule(ScheduleKind.ONE_F_ONE_B, 5, 8)
