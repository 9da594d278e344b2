"""What-if analysis of an operation table in pandas, as an analyst writes it: what `benchmarks.whatif`
compares with.

`python whatif_pandas.py TABLE.parquet ROUNDS` prints one JSON object: CPU seconds of each round and the
figures. Like ours it replays all steps and replicas at once (an array for each operation of the step),
because they share their dependencies; a loop over rows would only make the comparison cheap. Handles one
model chunk a stage.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

COMPUTE = ["forward-compute", "backward-compute"]
P2P = ["forward-send", "forward-recv", "backward-send", "backward-recv"]
WIDE = ["params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad"]
TAIL = ["embedding-grads-all-reduce", "grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"]


Deps = dict[str, list[str]]
Groups = dict[str, tuple[str, ...]]


def dependencies(df: pd.DataFrame) -> tuple[Deps, Groups]:
    """(operation -> what it waits for, operation -> its group), from one step of one replica."""
    one = df[(df.step == df.step.min()) & (df.dp_rank == 0)].sort_values(["start_ts", "seq_id"])
    deps: Deps = {op: [] for op in one.op}
    group: Groups = {op: (op,) for op in one.op}
    pp = one.stage.max() + 1
    for stage, rows in one.groupby("stage"):
        compute = rows[rows.optype.isin(COMPUTE)].op.tolist()
        for a, b in pairwise(compute):
            deps[b].append(a)
        for kind in P2P:
            ops = rows[rows.optype == kind].op.tolist()
            for a, b in pairwise(ops):
                deps[b].append(a)
        for way, step in (("forward", 1), ("backward", -1)):
            tasks = rows[rows.optype == f"{way}-compute"].sort_values("seq_id").op.tolist()
            for i, task in enumerate(tasks):
                send, recv = f"{way}-send_{i}_{stage}", f"{way}-recv_{i}_{stage}"
                if send in deps:
                    deps[send].append(task)
                    peer = f"{way}-recv_{i}_{stage + step}"
                    group[send] = group[peer] = (send, peer)
                if recv in deps:
                    deps[task].append(recv)
                    if i:
                        deps[recv].append(tasks[i - 1])
        kinds = [op.rsplit("_", 2)[0] for op in compute]
        at = kinds.index("backward-compute")
        for kind in ("backward-recv", "backward-send"):
            if at >= 2 and f"{kind}_0_{stage}" in deps:
                deps[f"{kind}_0_{stage}"].append(compute[at - 2])
        deps[f"forward-compute_0_{stage}"].append(f"params-all-gather_0_{stage}")
        deps[f"grads-reduce-scatter_0_{stage}"].append(f"params-all-gather_0_{stage}")
        last = compute[-1]
        for kind in TAIL:
            if f"{kind}_0_{stage}" in deps:
                deps[f"{kind}_0_{stage}"].append(last)
                last = f"{kind}_0_{stage}"
    first_and_last, all_of_them = sorted({0, pp - 1}), range(pp)
    for kind, stages in (
        ("embedding-grads-all-reduce", first_and_last),
        ("optimizer-clip-main-grad", all_of_them),
    ):
        members = tuple(f"{kind}_0_{stage}" for stage in stages)
        group.update(dict.fromkeys(members, members))
    return deps, group


def transfers(df: pd.DataFrame, group: Groups) -> pd.Series:
    """Lengths without waiting for the other members."""
    number = {members: i for i, members in enumerate(dict.fromkeys(group.values()))}
    df["group"] = df.op.map(lambda op: number[group[op]])
    wide = df.optype.isin(WIDE)
    df["lane"] = np.where(wide, -1, df.dp_rank)
    met = df.groupby(["step", "group", "lane"])
    last, members = met.start_ts.transform("max"), met.start_ts.transform("size")
    took = df.start_ts + df.duration - last
    took = took.where(took > -0.01, 0.0)
    return df.duration.where(members == 1, took)


def order_of(deps: Deps, group: Groups) -> list[tuple[str, ...]]:
    """Groups, each after what its members wait for."""
    waits = dict.fromkeys(group.values(), 0)
    after: dict[tuple[str, ...], list[tuple[str, ...]]] = {members: [] for members in waits}
    for op, before in deps.items():
        for other in before:
            after[group[other]].append(group[op])
            waits[group[op]] += 1
    ready = [members for members, count in waits.items() if not count]
    for members in ready:
        for later in after[members]:
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    return ready


def replay(
    df: pd.DataFrame,
    took: pd.Series,
    deps: Deps,
    order: list[tuple[str, ...]],
    index: dict[str, Any],
    replicas: int,
) -> pd.Series:
    """Seconds of each step."""
    values = took.to_numpy()
    start: dict[str, Any] = {}
    end: dict[str, Any] = {}
    steps = df.step.to_numpy()[index[order[0][0]]]
    for members in order:
        for op in members:
            before = [end[other] for other in deps[op]]
            start[op] = np.maximum.reduce(before) if before else np.zeros(len(steps))
        begin = np.maximum.reduce([start[op] for op in members])
        if members[0].rsplit("_", 2)[0] in WIDE and replicas > 1:
            begin = pd.Series(begin).groupby(steps).transform("max").to_numpy()
        for op in members:
            end[op] = begin + values[index[op]]
    last = np.maximum.reduce(list(end.values()))
    return pd.Series(last).groupby(steps).max()


def analyse(path: str) -> dict[str, float]:
    """S, M_W and M_S of a table."""
    df = pd.read_parquet(path)
    df["op"] = df.optype.astype(str) + "_" + df.seq_id.astype(str) + "_" + df.stage.astype(str)
    df["start_ts"] -= df.groupby("step").start_ts.transform("min")
    df = df.sort_values(["step", "dp_rank"]).reset_index(drop=True)
    deps, group = dependencies(df)
    own = transfers(df, group)
    order = order_of(deps, group)
    index = {op: rows.to_numpy() for op, rows in df.groupby("op").groups.items()}
    by_type = own.groupby(df.optype.astype(str))
    mean, median = by_type.transform("mean"), by_type.transform("median")
    equal = mean.where(df.optype.isin([*COMPUTE, "optimizer", "gc"]), median)
    replicas = df.dp_rank.nunique()

    def seconds(kept: pd.Series) -> float:
        return float(replay(df, own.where(kept, equal), deps, order, index, replicas).mean())

    all_true = pd.Series(True, index=df.index)
    real, ideal = seconds(all_true), seconds(~all_true)
    for kinds in ([kind] for kind in df.optype.unique() if kind not in P2P):
        seconds(df.optype.isin(kinds))
    for way in ("forward", "backward"):
        seconds(df.optype.isin([f"{way}-send", f"{way}-recv"]))
    stage = {s: seconds(df.stage == s) / ideal for s in df.stage.unique()}
    replica = {d: seconds(df.dp_rank == d) / ideal for d in df.dp_rank.unique()}
    score = {(s, d): min(stage[s], replica[d]) for s in stage for d in replica}
    rank = df.drop_duplicates("rank").set_index(["stage", "dp_rank"])["rank"]
    slowest = sorted(score, key=lambda place: (-score[place], rank[place]))[: -(-len(score) * 3 // 100)]
    left = {s: seconds(df.stage != s) for s in stage}
    without = seconds(~df["rank"].isin([rank[place] for place in slowest]))
    seconds(~df.optype.isin(COMPUTE))
    return {
        "S": real / ideal,
        "M_W": (real - without) / (real - ideal),
        "M_S": (real - left[max(stage)]) / (real - ideal),
    }


def main() -> int:
    """Measures and prints."""
    taken, figures = [], {}
    for _ in range(int(sys.argv[2])):
        begin = time.process_time()
        figures = analyse(sys.argv[1])
        taken.append(time.process_time() - begin)
    print(json.dumps({"seconds": taken, "figures": figures, "pandas": pd.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
