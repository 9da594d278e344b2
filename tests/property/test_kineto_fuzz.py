"""Any bytes into the reader of profiles give a profile or a TraceError, and any profile can be analysed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from megatrace.analysis.profiling import profile
from megatrace.errors import TraceError
from megatrace.readers.kineto import open_profiles
from megatrace.reports import ReportOptions, profile_json, profile_text
from tests.unit.profile_cases import content, tiny

WHOLE = content(tiny())
times = st.integers(-(1 << 61), 1 << 61) | st.integers(0, 200)
kinds = st.sampled_from(
    ["cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "cuda_sync", "user_annotation", "python_function", "x"]
)
names = st.sampled_from(
    [
        "aten::mm",
        "cudaDeviceSynchronize",
        "cudaMemcpyAsync",
        "ncclKernel_AllReduce",
        "Stream Sync",
        "data_load",
    ]
)
events = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": kinds,
        "name": names,
        "ts": times,
        "dur": times,
        "pid": st.integers(0, 2) | st.just("Spans"),
        "tid": st.integers(0, 3),
        "args": st.fixed_dictionaries(
            {"correlation": st.integers(0, 6), "stream": st.integers(-1, 3), "External id": st.integers(0, 5)}
        ),
    }
)


def judged(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank1.json"
        path.write_bytes(data)
        try:
            profiles, notes = open_profiles([path])
        except TraceError:
            return
    result = profile(profiles, notes)
    for time in result.ranks:
        assert time.compute + time.exposed + time.memory_only + time.idle == time.span
        assert 0 <= time.overlap <= min(time.compute, time.communication)
    for way in result.paths:
        assert sum(piece.end - piece.start for piece in way.pieces) == way.length
    assert profile_text.render(result, ReportOptions(verbose=True)).startswith("PROFILE")
    assert profile_json.render(result, ReportOptions(verbose=True)).startswith("{")


@given(st.lists(events, max_size=30))
def test_any_events_can_be_analysed(made: list[dict[str, object]]) -> None:
    judged(content(made))


@given(st.data())
@settings(max_examples=200)
def test_any_damage_leaves_a_profile_or_an_error(data: st.DataObject) -> None:
    whole = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.integers(0, 2))
        if kind == 0:
            whole[at] = data.draw(st.integers(0, 255))
        elif kind == 1:
            del whole[at : at + data.draw(st.integers(1, 60))]
        else:
            whole[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        if not whole:
            break
    judged(bytes(whole))


@given(st.binary(max_size=200))
def test_any_bytes_behind_a_header_are_survived(tail: bytes) -> None:
    judged(b'{"schemaVersion": 1, "traceEvents": [' + tail)
