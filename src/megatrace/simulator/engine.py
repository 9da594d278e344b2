"""The physics: when every rank's host, device and network does each thing of its program.

A max-plus recursion over the programs. Every rank has a host clock that issues calls and runs ahead, and
device lanes that work in order; a kernel begins when it was launched and the one before it ended; a
collective begins on a rank when it is its turn there, and ends on all members when the last has come plus the
time of the transfer; a Send and its Recv end when both are there plus the time of the message. "Never" is
+infinity: what depends on a thing that never happens never happens, so a hang with all its victims, and how
far each host got, follows from the recursion.

Stages are coroutines that run until they need something of another stage. Within a stage every step is one
numpy expression over [dp, cp, tp]; there is no loop over ranks. Times are float64 ns after the start of the
job.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import Op
from megatrace.simulator.cluster import F8, Cluster
from megatrace.simulator.effects import MS, Times, uneven_counts
from megatrace.simulator.faults import DeadLink, SlowLink, SlowNic
from megatrace.simulator.program import (
    CROSS_STAGE,
    Call,
    Channel,
    Compute,
    Exchange,
    HostWork,
    Lane,
    Message,
    Program,
    RingStep,
    Until,
    Wait,
)
from megatrace.simulator.state import LAUNCH_NS, NEVER, Meeting, Recorded, StageState
from megatrace.simulator.stops import Stop, Strike

PLAIN_AXES: dict[str, int | tuple[int, ...]] = {"tp": 2, "cp": 1, "dp": (0, 1)}
"""Axes of [dp, cp, tp] over which the groups of a channel within a stage extend (by name: enums hash slowly).
"""
POST_NS = 1e3
"""From one call of a group to the next: each has its time, or two alike would be one line written twice."""


class Engine:
    """Runs the programs of all stages, iteration by iteration. One instance runs once."""

    def __init__(self, cluster: Cluster, deaths: F8 | None = None) -> None:
        """``deaths`` float64 [world]: the time at which each rank's process ends, or None."""
        self.cluster = cluster
        self.states = [StageState(cluster.shape) for _ in range(cluster.layout.pp)]
        self.mortal = deaths is not None
        if deaths is not None:
            for stage, state in enumerate(self.states):
                state.death = deaths[cluster.grid[stage]].astype(np.float64)
        self.dead_links = tuple(f for f in cluster.scenario.faults if isinstance(f, DeadLink))
        self._costs: dict[tuple[int, tuple[SlowLink | SlowNic, ...]], tuple[Program, dict[int, F8]]] = {}
        self.struck_at: dict[int, float] = {}
        """Per rank that was struck: the time of its host when it came to the instruction."""

    def iterate(self, iteration: int, programs: list[Program], strikes: list[Strike]) -> list[Recorded]:
        """One iteration of all stages. Strikes are those of this iteration."""
        if any(strike.stop is Stop.DEATH for strike in strikes):
            self._be_mortal()
        meetings: dict[tuple[Channel, int], Meeting] = {}
        posted: dict[tuple[bool, int, int, int], tuple[F8, F8 | None]] = {}
        runs = [_StageRun(self, iteration, program, strikes, meetings, posted) for program in programs]
        waiting = [(run, run.steps()) for run in runs]
        while waiting:
            still = []
            before = (
                sum(run.position for run in runs)
                + len(posted)
                + sum(len(m.arrivals) for m in meetings.values())
            )
            for run, steps in waiting:
                if next(steps, None) is not None:
                    still.append((run, steps))
            after = (
                sum(run.position for run in runs)
                + len(posted)
                + sum(len(m.arrivals) for m in meetings.values())
            )
            if still and before == after and len(still) == len(waiting):
                raise RuntimeError("the programs of the stages do not fit each other")  # a bug, not a hang
            waiting = still
        return [run.recorded() for run in runs]

    def costs_of(self, program: Program, links: tuple[SlowLink | SlowNic, ...]) -> dict[int, F8]:
        """Times of collectives by instruction, kept from one iteration to the next."""
        # The program stands in the value so that its id stays its own.
        return self._costs.setdefault((id(program), links), (program, {}))[1]

    def finished(self) -> NDArray[np.bool_]:
        """[pp, dp, cp, tp]: hosts that got to the end of what was run."""
        return np.stack([np.isfinite(state.host) for state in self.states])

    def _be_mortal(self) -> None:
        self.mortal = True
        for state in self.states:
            if state.death is None:
                state.death = np.full(state.shape, NEVER)


class _StageRun:
    """One stage in one iteration."""

    def __init__(
        self,
        engine: Engine,
        iteration: int,
        program: Program,
        strikes: list[Strike],
        meetings: dict[tuple[Channel, int], Meeting],
        posted: dict[tuple[bool, int, int, int], tuple[F8, F8 | None]],
    ) -> None:
        self.engine, self.cluster, self.program = engine, engine.cluster, program
        self.iteration, self.stage = iteration, program.stage
        self.state = engine.states[program.stage]
        self.times = Times(engine.cluster, program, iteration)
        self.counts = uneven_counts(engine.cluster, program, iteration)
        self.meetings, self.posted = meetings, posted
        self.costs = engine.costs_of(program, self.times.links)
        self.position = 0
        self.sent: dict[tuple[bool, int, int], int] = {}
        self.met: dict[Channel, int] = {}
        shape = (len(program.rows), *engine.cluster.shape)
        self.enqueue, self.start, self.end = (np.full(shape, NEVER) for _ in range(3))
        self.strikes: dict[int, list[tuple[Strike, int]]] = {}
        for strike in strikes:
            at, flat = self.cluster.locate(strike.rank)
            if at == self.stage:
                self.strikes.setdefault(strike.instruction, []).append((strike, flat))

    def recorded(self) -> Recorded:
        rows = len(self.program.rows)
        columns = [array.reshape(rows, -1) for array in (self.enqueue, self.start, self.end)]
        work = self.times.device.sum(axis=0).reshape(-1)
        return Recorded(self.iteration, self.program, columns[0], columns[1], columns[2], self.counts, work)

    def steps(self) -> Iterator[bool]:
        """Runs the program; yields where another stage must go first."""
        state = self.state
        kernel = 0
        for index, item in enumerate(self.program.instructions):
            self.position = index
            if index in self.strikes:
                self._strike(index)
            elif type(item) is Call and self._plain_call(index, item):
                continue
            if isinstance(item, Compute):
                self._spend(index)
                self._compute(item, self.times.device[kernel])
                kernel += 1
            elif isinstance(item, Call):
                self._spend(index)
                if item.channel in CROSS_STAGE:
                    yield from self._call_across(index, item)
                else:
                    self._call(index, item)
            elif isinstance(item, Exchange):
                self._spend(index)
                yield from self._exchange(index, item)
            elif isinstance(item, RingStep):
                self._spend(index)
                self._ring(index, item)
            elif isinstance(item, HostWork):
                self._spend(index)
            else:
                self._wait(item)
            if state.death is not None:
                self._bury()
        self.position = len(self.program.instructions)

    def _strike(self, index: int) -> None:
        """What stops before the instruction is carried out."""
        state = self.state
        for strike, flat in self.strikes[index]:
            struck = state.host.reshape(-1)[flat]
            if strike.stop in (Stop.KERNEL, Stop.INSIDE):  # the host is ahead of what stops
                struck = max(struck, state.compute.reshape(-1)[flat])
            self.engine.struck_at[strike.rank] = float(struck)
            if strike.stop is Stop.HOST:
                state.host = _with(state.host, flat, NEVER)
            elif strike.stop is Stop.KERNEL:
                state.compute = _with(state.compute, flat, NEVER)
            elif strike.stop is Stop.DEATH and state.death is not None:
                now = state.host.reshape(-1)[flat]
                state.death = _with(state.death, flat, min(now, state.death.reshape(-1)[flat]))
                state.host = _with(state.host, flat, NEVER)

    def _bury(self) -> None:
        """The dead do nothing after their end."""
        state = self.state
        death = state.death
        assert death is not None
        state.host = np.where(state.host > death, NEVER, state.host)
        state.compute = np.where(state.compute > death, NEVER, state.compute)

    def _spend(self, index: int) -> None:
        state = self.state
        state.host = state.host + self.times.host[index]

    def _launch(self, kernels: int) -> F8:
        """Queues kernels; the host waits where the queue is full. Returns the earliest start there."""
        state = self.state
        limit = self.cluster.scenario.launch_ahead
        while state.launched and state.kernels + kernels - state.launched[0][0] > limit:
            state.host = np.maximum(state.host, state.launched.popleft()[1])
        state.kernels += kernels
        return state.host + LAUNCH_NS

    def _compute(self, item: Compute, duration: F8) -> None:
        state = self.state
        begin = np.maximum(self._launch(item.kernels), state.compute)
        state.launched.append((state.kernels, begin))
        state.compute = begin + duration
        if state.busy is not None:
            state.busy.append((state.host, begin, state.compute))

    def _wait(self, item: Wait) -> None:
        state = self.state
        before = state.host
        if item.until is Until.DEVICE:
            done = np.maximum(np.maximum(state.compute, state.p2p), state.grads)
            state.host = np.maximum(state.host, done)
            state.launched.clear()
        elif item.until is Until.LAST_CALL:
            state.host = np.maximum(state.host, state.last_call)
        elif item.until is Until.GRADS:
            state.compute = np.maximum(state.compute, state.grads)
        elif len(state.gather) > 1:
            state.compute = np.maximum(state.compute, state.gather[0])
        if state.busy is not None and state.host is not before:
            state.waits.append((before, state.host))

    def _arrival(self, item: Call | RingStep) -> F8:
        """When the call's kernel comes to the head of its lane."""
        state = self.state
        arrival = np.maximum(self._launch(1), state.compute)
        lane = item.lane if isinstance(item, Call) else Lane.COMPUTE
        if lane is Lane.GRADS:
            return np.maximum(arrival, state.grads)
        if lane is Lane.GATHER and state.gather:
            # A gather needs no result of the compute lane, only its own turn.
            return np.maximum(state.host + LAUNCH_NS, state.gather[-1])
        return arrival if lane is Lane.COMPUTE else state.host + LAUNCH_NS

    def _bring(self, index: int, item: Call) -> tuple[F8, F8, NDArray[np.bool_]]:
        """(arrival, what counts for the group, ranks that leave the call out); records enqueue and start."""
        state = self.state
        arrival = self._arrival(item)
        if state.death is not None:
            arrival = np.where(arrival > state.death, NEVER, arrival)
        brought = arrival
        skipped = np.zeros(state.shape, bool)
        for strike, flat in self.strikes.get(index, ()):
            if strike.stop is Stop.SKIP:
                skipped.reshape(-1)[flat] = True
            if strike.stop in (Stop.BREAK, Stop.SKIP):
                broken = state.out_of_step.setdefault(item.channel, np.zeros(state.shape, bool))
                broken.reshape(-1)[flat] = True
            if strike.stop in (Stop.INSIDE, Stop.BREAK, Stop.SKIP):
                brought = _with(brought, flat, NEVER)
        if item.channel in state.out_of_step:
            brought = np.where(state.out_of_step[item.channel], NEVER, brought)
        row = self.program.first_row[index]
        self.enqueue[row] = np.where(skipped, NEVER, state.host)
        self.start[row] = np.where(skipped, NEVER, arrival)
        return arrival, brought, skipped

    def _settle(self, index: int, item: Call, end: F8, skipped: NDArray[np.bool_]) -> None:
        """Records the end of a call and moves its lane on."""
        state = self.state
        row = self.program.first_row[index]
        if state.death is not None:
            end = np.where(end > state.death, NEVER, end)
        if skipped.any():
            self.end[row] = np.where(skipped, NEVER, end)
            end = np.where(skipped, state.compute, end)
        else:
            self.end[row] = end
        if item.lane is Lane.COMPUTE:
            state.compute = end
            state.last_call = end
        elif item.lane is Lane.GRADS:
            state.grads = end
        else:
            state.gather.append(end)

    def _plain_call(self, index: int, item: Call) -> bool:
        """The common case in few numpy calls: a blocking collective within the stage with which nothing is
        wrong."""
        state = self.state
        axis = PLAIN_AXES.get(item.channel.value)
        if axis is None or item.lane is not Lane.COMPUTE or state.death is not None or state.out_of_step:
            return False
        state.host = state.host + self.times.host[index]
        arrival = np.maximum(self._launch(1), state.compute)
        row = self.program.first_row[index]
        self.enqueue[row] = state.host
        self.start[row] = arrival
        end = self.end[row]
        end[...] = arrival.max(axis=axis, keepdims=True) + self._cost(index, item)
        state.compute = state.last_call = end
        return True

    def _cost(self, index: int, item: Call) -> F8:
        cost = self.costs.get(index)
        if cost is None:
            nbytes = item.count * item.width
            cost = self.cluster.collective(self.stage, item.channel, item.op, nbytes, self.times.links)
            self.costs[index] = cost
        return cost

    def _call(self, index: int, item: Call) -> None:
        _, brought, skipped = self._bring(index, item)
        cluster, state = self.cluster, self.state
        end = cluster.spread(item.channel, brought) + self._cost(index, item)
        if state.death is not None:
            first_death = -cluster.spread(item.channel, -state.death)
            end = np.where(first_death < end, NEVER, end)
        self._settle(index, item, end, skipped)

    def _call_across(self, index: int, item: Call) -> Iterator[bool]:
        _, brought, skipped = self._bring(index, item)
        cluster, state, channel = self.cluster, self.state, item.channel
        turn = self.met.get(channel, 0)
        self.met[channel] = turn + 1
        meeting = self.meetings.setdefault((channel, turn), Meeting())
        if state.death is not None:
            meeting.deaths[self.stage] = cluster.reduce_for(channel, -state.death)
        meeting.arrivals[self.stage] = cluster.reduce_for(channel, brought)
        while len(meeting.arrivals) < len(set(cluster.stages_of(channel))):
            yield True
        end = np.maximum.reduce(list(meeting.arrivals.values()))
        end = end + self._cost(index, item)
        if state.death is not None:
            first_death = -np.maximum.reduce(list(meeting.deaths.values()))
            end = np.where(first_death < end, NEVER, end)
        self._settle(index, item, np.array(np.broadcast_to(end, state.shape)), skipped)

    def _exchange(self, index: int, item: Exchange) -> Iterator[bool]:
        state = self.state
        first = self.program.first_row[index]
        stopped = {
            flat: strike.message
            for strike, flat in self.strikes.get(index, ())
            if strike.stop is Stop.MESSAGE
        }
        arrival = np.maximum(self._launch(len(item.messages)), state.p2p)
        for flat in stopped:
            arrival = _with(arrival, flat, NEVER)
        if state.death is not None:
            arrival = np.where(arrival > state.death, NEVER, arrival)
        keys = []
        for number, message in enumerate(item.messages):
            enqueue = state.host.copy()
            enqueue += number * POST_NS
            for flat, at in stopped.items():
                if number >= at:
                    enqueue.reshape(-1)[flat] = NEVER
            self.enqueue[first + number] = enqueue
            self.start[first + number] = arrival
            keys.append(self._post(message, arrival))
        end = arrival
        for number, message in enumerate(item.messages):
            while keys[number] not in self.posted:
                yield True
            theirs, death = self.posted[keys[number]]
            ready = np.maximum(arrival, theirs)
            done = ready + self._transfer(item, message)
            if self.engine.dead_links:
                self._note_cut(message, ready, done)
            if state.death is not None:
                gone = state.death if death is None else np.minimum(state.death, death)
                done = np.where(gone < done, NEVER, done)
            self.end[first + number] = done
            end = np.maximum(end, done)
        for flat in stopped:
            state.host = _with(state.host, flat, NEVER)
        state.p2p = end

    def _post(self, message: Message, arrival: F8) -> tuple[bool, int, int, int]:
        """Posts one side of a message, first in first out per direction; returns the other side's key."""
        sends = message.op is Op.SEND
        src, dst = (self.stage, message.peer_stage) if sends else (message.peer_stage, self.stage)
        lane = (message.backward, 2 * src + (0 if sends else 1), dst)
        turn = self.sent.get(lane, 0)
        self.sent[lane] = turn + 1
        self.posted[(message.backward, lane[1], dst, turn)] = (arrival, self.state.death)
        return (message.backward, 2 * src + (1 if sends else 0), dst, turn)

    def _transfer(self, item: Exchange, message: Message) -> F8:
        nbytes = item.count * item.width
        cost = self.cluster.transfer(self.stage, message.peer_stage, nbytes, self.times.links)
        for fault in self.times.messages:
            sender, flat = self.cluster.locate(fault.rank)
            here = self.stage if message.op is Op.SEND else message.peer_stage
            task = message.task
            if here == sender and (task.phase, task.micro_batch) == (fault.phase, fault.micro_batch):
                cost = _with(cost, flat, float(cost.reshape(-1)[flat]) + fault.delay_ms * MS)
        for link in self.engine.dead_links:
            begun = (self.iteration, message.task.micro_batch or 0) >= (link.iteration, link.micro_batch)
            if begun:
                grid = self.cluster.grid
                here, there = grid[self.stage], grid[message.peer_stage]
                cut = ((here == link.src) & (there == link.dst)) | ((here == link.dst) & (there == link.src))
                cost = np.where(cut, NEVER, cost)
        return cost

    def _note_cut(self, message: Message, ready: F8, done: F8) -> None:
        """Keeps the time of the first transfer that a dead link swallowed."""
        grid = self.cluster.grid
        for link in self.engine.dead_links:
            for here, there in ((link.src, link.dst), (link.dst, link.src)):
                cut = (grid[self.stage] == here) & (grid[message.peer_stage] == there)
                cut &= np.isfinite(ready) & ~np.isfinite(done)
                if cut.any():
                    self.engine.struck_at.setdefault(link.src, float(ready[cut][0]))

    def _ring(self, index: int, item: RingStep) -> None:
        state = self.state
        arrival = self._arrival(item)
        if state.death is not None:
            arrival = np.where(arrival > state.death, NEVER, arrival)
        row = self.program.first_row[index]
        cost = self.cluster.collective(
            self.stage, Channel.CONTEXT, Op.BROADCAST, item.count * item.width, self.times.links
        )
        sent = np.maximum(arrival, np.roll(arrival, -1, axis=1)) + cost
        got = np.maximum(arrival, np.roll(arrival, 1, axis=1)) + cost
        for offset, end in enumerate((sent, got)):
            self.enqueue[row + offset] = state.host + offset * POST_NS
            self.start[row + offset] = arrival
            self.end[row + offset] = end if state.death is None else np.where(end > state.death, NEVER, end)
        state.compute = np.maximum(sent, got)


def _with(values: F8, flat: int, value: float) -> F8:
    """A copy with one place set."""
    copy = np.array(values)
    copy.reshape(-1)[flat] = value
    return copy
