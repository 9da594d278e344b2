"""A bundle repeats the diagnosis anywhere, and tells nothing of the people and machines it came from."""

from __future__ import annotations

import gzip
import io
import json
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from megatrace.commands.main import main
from megatrace.commands.packing import common_folder
from megatrace.model.schedule import Phase
from megatrace.simulator import Scenario, SlowGpu, StuckHost, simulate
from megatrace.simulator.emit import write_text

HOSTS = ("alpha-1", "beta-2")


def logs(tmp_path: Path, fault: str = "stuck", dialect: str = "bracketed") -> Path:
    faults: dict[str, StuckHost | SlowGpu] = {
        "stuck": StuckHost(rank=5, iteration=6, micro_batch=2, phase=Phase.BACKWARD),
        "slow": SlowGpu(rank=5, factor=2.5, first_iteration=4, last_iteration=7),
    }
    scenario = Scenario(
        name="job", seed=3, tp=2, pp=2, dp=2, ranks_per_node=4, micro_batches=4, iterations=10,
        layers_per_stage=2, faults=(faults[fault],),
    )  # fmt: skip
    folder = tmp_path / "logs"
    write_text(simulate(scenario).trace, folder, dialect)
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        for index, host in enumerate(HOSTS):
            text = text.replace(f"[node{index}]", f"[{host}]").replace(
                f"[10.0.0.{index}]", f"[10.3.4.{index}]"
            )
        path.write_text(text, encoding="utf-8")
    return folder


def verdict(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["diagnose", *arguments, "--format", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    for key in ("generated_at", "inputs"):
        del found[key]
    return found


def members(path: Path) -> dict[str, bytes]:
    data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {item.name: archive.extractfile(item).read() for item in archive}  # type: ignore[union-attr]


@pytest.mark.parametrize("fault", ["stuck", "slow"])
def test_the_same_verdict_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    folder, out, mapping = logs(tmp_path, fault), tmp_path / "job.tar.zst", tmp_path / "mapping.json"
    hostfile = tmp_path / "hosts"
    hostfile.write_text("".join(f"{host} slots=4\n" for host in HOSTS), encoding="utf-8")
    here = verdict(capsys, str(folder), "--hostfile", str(hostfile))
    assert main(["bundle", str(folder), "-o", str(out), "--hostfile", str(hostfile), "--mapping",
                 str(mapping)]) == 0  # fmt: skip
    assert "Masked: 2 host names" in capsys.readouterr().out
    text = json.dumps(here)
    assert HOSTS[0] in text
    for old, new in json.loads(mapping.read_text(encoding="utf-8")).items():
        text = text.replace(old, new)
    assert verdict(capsys, str(out)) == json.loads(text)
    assert stat.S_IMODE(mapping.stat().st_mode) == 0o600


def test_no_name_survives_and_everything_belongs_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = logs(tmp_path), tmp_path / "job.tar.zst"
    (folder / "alpha-1.env").write_text("USER=mallory\nMY_SECRET=abcdefgh\n", encoding="utf-8")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/home/mallory/nccl.log")
    monkeypatch.setenv("SLURM_AUTH_TOKEN", "0123456789")
    monkeypatch.setenv("UNRELATED", "mine")
    assert main(["bundle", str(folder), "-o", str(out)]) == 0
    found = members(out)
    whole = "\n".join(found) + "\n" + b"\n".join(found.values()).decode("utf-8", "replace")
    for private in (*HOSTS, "10.3.4.", "mallory", "abcdefgh", "0123456789", "mine"):
        assert private not in whole, private
    inputs = [name for name in found if name.startswith("inputs/")]
    assert len(inputs) == 9
    assert {".megatrace/bundle.json", ".megatrace/diagnosis.json", ".megatrace/frontier.bin",
            ".megatrace/environment.json"} == set(found) - set(inputs)  # fmt: skip
    environment = json.loads(found[".megatrace/environment.json"])
    assert environment["variables"]["NCCL_DEBUG_FILE"].startswith("/home/u")
    assert json.loads(found[".megatrace/diagnosis.json"])["verdict"] == "hang"


def test_names_can_be_kept_but_secrets_never_are(tmp_path: Path) -> None:
    folder, out = logs(tmp_path), tmp_path / "job.tar.zst"
    (folder / "job.env").write_text("MY_SECRET=abcdefgh\n", encoding="utf-8")
    assert main(["bundle", str(folder), "-o", str(out), "--keep-names"]) == 0
    found = members(out)
    assert found["inputs/rank_0.log"] == (folder / "rank_0.log").read_bytes()
    assert found["inputs/job.env"] == b"MY_SECRET=xxxxxxxx\n"


def test_the_same_inputs_make_the_same_bytes(tmp_path: Path) -> None:
    folder = logs(tmp_path)
    made = []
    for _ in range(2):
        main(["bundle", str(folder), "-o", str(tmp_path / "job.tar.zst")])
        made.append((tmp_path / "job.tar.zst").read_bytes())
    assert made[0] == made[1]


def test_packed_inputs_are_unpacked_and_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = logs(tmp_path)
    here = verdict(capsys, str(folder))
    archive = tmp_path / "logs.tar"
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, f"job/{path.name}")
    packed = tmp_path / "logs.tar.gz"
    packed.write_bytes(gzip.compress(archive.read_bytes()))
    assert main(["bundle", str(packed), "-o", str(tmp_path / "job.tar.zst")]) == 0
    assert not any(
        host.encode() in data for data in members(tmp_path / "job.tar.zst").values() for host in HOSTS
    )
    capsys.readouterr()
    assert verdict(capsys, str(tmp_path / "job.tar.zst")) == here


def test_a_bundle_of_one_node_has_only_its_inputs(tmp_path: Path) -> None:
    folder, out = logs(tmp_path), tmp_path / "job.tar.zst"
    (folder / "beta-2.dmesg").write_text("nothing\n", encoding="utf-8")
    by_name = ["bundle", str(folder), "-o", str(out), "--nodes", "beta-2", "--keep-names"]
    assert main(by_name) == 0
    wanted = {"inputs/rank_4.log", "inputs/rank_5.log", "inputs/rank_6.log", "inputs/rank_7.log"}
    assert {name for name in members(out) if name.startswith("inputs/")} == {*wanted, "inputs/beta-2.dmesg"}


def test_nodes_follow_from_ranks_where_logs_have_no_names(tmp_path: Path) -> None:
    folder, out = logs(tmp_path, dialect="opCount"), tmp_path / "job.tar.zst"
    asked = ["bundle", str(folder), "-o", str(out), "--ranks-per-node", "4", "--nodes", "node0"]
    assert main(asked) == 0
    assert {name for name in members(out) if name.startswith("inputs/")} == {
        f"inputs/rank_{rank}.log" for rank in range(4)
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "gamma-9"], "no input belongs to gamma-9 (nodes seen: alpha-1, beta-2)"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_cannot_be_packed_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    out = tmp_path / "job.tar.zst"
    assert main(["bundle", str(logs(tmp_path)), "-o", str(out), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_without_files_makes_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, out = tmp_path / "empty", tmp_path / "x.tar.zst"
    empty.mkdir()
    assert main(["bundle", str(empty), "-o", str(out)]) == 3
    assert "nothing to pack" in capsys.readouterr().err
    assert not out.exists()


def test_inputs_that_nobody_can_read_are_packed_for_those_who_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "strange.bin").write_bytes(bytes(range(256)) * 100)
    out = tmp_path / "job.tar.zst"
    assert main(["bundle", str(tmp_path / "strange.bin"), "-o", str(out)]) == 0
    assert "no diagnosis" in capsys.readouterr().err
    assert members(out)["inputs/strange.bin"] == (tmp_path / "strange.bin").read_bytes()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda text: text.replace("bundle/1", "bundle/9"),
            "a bundle of another version (megatrace.bundle/9)",
        ),
        (
            lambda text: text.replace('"ranks_per_node": 4', '"ranks_per_node": "x"'),
            "damaged (ranks_per_node)",
        ),
        (lambda text: "{", "damaged"),
    ],
)
def test_a_manifest_that_was_tampered_with_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[str], str], said: str
) -> None:
    out = tmp_path / "job.tar.zst"
    main(["bundle", str(logs(tmp_path)), "-o", str(out), "--ranks-per-node", "4"])
    found = members(out)
    changed = damage(found[".megatrace/bundle.json"].decode()).encode()
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        for name, data in {**found, ".megatrace/bundle.json": changed}.items():
            item = tarfile.TarInfo(name)
            item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
    capsys.readouterr()
    assert main(["diagnose", str(tmp_path / "bad.tar")]) == 2
    assert said in capsys.readouterr().err


def test_the_shared_folder_of_the_inputs_is_left_out() -> None:
    assert common_folder(["a/b/c.log", "a/b/d/e.log"]) == "a/b/"
    assert common_folder(["/x/c.log"]) == "/x/"
    assert common_folder(["c.log", "a/d.log"]) == ""
    assert common_folder([]) == ""


@pytest.mark.shared
def test_the_real_log_says_the_same_from_its_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shared_dir: Path
) -> None:
    real, out = shared_dir / "data/megatron_rank2_slow/logs.tar.xz", tmp_path / "real.tar.zst"
    here = verdict(capsys, str(real))
    assert main(["bundle", str(real), "-o", str(out)]) == 0
    assert "8 inputs" in capsys.readouterr().out
    assert verdict(capsys, str(out)) == here
    assert out.stat().st_size < 2 * real.stat().st_size
