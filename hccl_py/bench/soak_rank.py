"""One process of a soak: walks through generation after generation and says how each one went."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import random
import signal
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import Any

from hccl_py import Communicator
from hccl_py.bench.namespaces import enter
from hccl_py.bench.soak_calls import Caller, Running, WrongResult
from hccl_py.bench.soak_faults import die, noisy_lanes, reset_some, strike_later
from hccl_py.bench.soak_plan import (
    CONNECT_S,
    CONNECT_WITH_STOPPED_S,
    DEADLY,
    FINAL,
    GONE,
    WORLD,
    Call,
    Event,
    Fault,
    Generation,
    GroupCloses,
    GroupOpens,
    Limits,
    draw,
    item_bytes,
)
from hccl_py.transport.errors import BootstrapError, CommunicatorError
from hccl_py.transport.network.identity import Identity

_MOST_RUNNING = 6
_AFTERWARDS = 1_000_000
"""Numbers of the calls that survivors make until they notice a death."""
_SMALL = Call(_AFTERWARDS, WORLD, "all_reduce", "int32", "SUM", 1000, 0, "plain", False, False, 0)
_AFTER_SHRINKING = 10
"""Calls of those that are left."""
_SHRINK_S = 40.0
_SETTLE_S = 2.0
_STUCK_S = 30.0
"""How long survivors may go on without noticing."""


@dataclass(frozen=True)
class Story:
    """What one rank was told when a communicator broke."""

    group: str
    kind: str
    text: str
    told: tuple[Any, ...]
    at_s: float

    @property
    def rank(self) -> int | None:
        """The rank that is blamed."""
        rank: int | None = self.told[0]
        return rank


@dataclass
class Outcome:
    """How a generation went on one rank."""

    rank: int
    calls: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0
    num_waits: int = 0
    stories: list[Story] = field(default_factory=list)
    num_repairs: int = 0
    shrunk_after_s: float | None = None
    not_connected: str | None = None
    num_unanswered: int = 0
    """Sends and recvs that ended alone because a rank that is stuck did not answer."""
    wrong: str | None = None
    resources: dict[str, int] = field(default_factory=dict)


class _OverError(Exception):
    """The communicator of all ranks is broken: the generation is over."""


class Walk:
    """One rank's way through one generation."""

    def __init__(
        self, generation: Generation, rank: int, store: Any, tell: connection.Connection
    ) -> None:
        """Prepare; nothing is connected yet."""
        self._generation = generation
        self._rank = rank
        self._store = store
        self._tell = tell
        self._telling = threading.Lock()  # faults tell of themselves on threads of their own
        self._callers: dict[str, Caller] = {}
        self._running: list[tuple[int, str, Running]] = []
        self._broken: set[str] = set()
        self._striker: threading.Timer | None = None
        self._dice = random.Random(f"{generation.seed}/{generation.index}/{rank}")
        self.outcome = Outcome(rank)

    def walk(self) -> None:
        """Connect, take every event, close. What went wrong stands in the outcome."""
        generation, fault = self._generation, self._generation.fault
        with contextlib.ExitStack() as faults:
            if fault and fault.kind == "noise" and fault.victim == self._rank:
                faults.enter_context(noisy_lanes(self._dice.randrange(1 << 32)))
            try:
                self._open(WORLD, tuple(range(generation.world_size)))
                for event in generation.events:
                    self._take(event)
                self._await_news()
                self._finish(all_of_them=True)
            except _OverError:
                self._shrink()
            finally:
                self._close()

    # ------------------------------------------------------------ events

    def _take(self, event: Event) -> None:
        fault = self._generation.fault
        strikes = fault is not None and fault.number == event.number
        if strikes and fault is not None and fault.victim == self._rank:
            self._strike(fault, event)
        self._finish_due(event.number)
        try:
            if isinstance(event, GroupOpens):
                if self._rank in event.members:
                    self._open(event.group, event.members)
            elif event.group not in self._callers:
                return
            elif isinstance(event, GroupCloses):
                self._finish(of_group=event.group)
                self._leave(event.group)
            else:
                self._call(event)
        except CommunicatorError as error:
            # To open a group is a call of the communicator whose ranks it has.
            self._fail(WORLD if isinstance(event, GroupOpens) else event.group, error)
        except BootstrapError as error:
            if fault is None or fault.kind != "stop":
                raise
            # Of a rank that has stopped nothing is known but that it does not come: the time for
            # connecting passes, and the next call tells.
            self.outcome.not_connected = str(error)

    def _call(self, call: Call) -> None:
        caller = self._callers[call.group]
        try:
            running = caller.start(call)
        except CommunicatorError as error:
            self._fail(call.group, error)
            return
        self.outcome.calls[call.kind] += 1
        self.outcome.num_bytes += call.count * item_bytes(call.dtype)
        if call.waits:
            self._running.append((call.number + call.waits, call.group, running))
            self.outcome.num_waits += 1
        else:
            running.finish()

    def _finish_due(self, number: int) -> None:
        while self._running and (
            self._running[0][0] <= number or len(self._running) > _MOST_RUNNING
        ):
            self._finish_first()

    def _finish(self, all_of_them: bool = False, of_group: str = "") -> None:
        """Wait for calls in the order in which they were made; in all groups, or in one."""
        while any(all_of_them or group == of_group for _, group, _ in self._running):
            self._finish_first()

    def _finish_first(self) -> None:
        _, group, running = self._running.pop(0)
        try:
            running.finish()
        except CommunicatorError as error:
            self._fail(group, error)

    def _open(self, group: str, members: tuple[int, ...]) -> None:
        generation = self._generation
        if group == WORLD:
            communicator = self._meet()
        else:
            world = self._callers[WORLD].communicator
            communicator = world.subset(members, group, timeout_s=self._connect_s())
        communicator.timeout_s = generation.timeout_s
        if generation.fault is not None and generation.fault.kind == "reset":
            communicator.barrier()  # it stands on all ranks
        self._callers[group] = Caller(communicator, generation.seed, generation.index)

    def _meet(self) -> Communicator:
        """Make the communicator of all ranks."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        generation = self._generation
        return Communicator(
            PrefixStore(str(generation.index), self._store),
            self._rank,
            generation.world_size,
            timeout_s=self._connect_s(),
            name=WORLD,
            identity=Identity.of_this_process(generation.nodes[self._rank]),
        )

    def _connect_s(self) -> float:
        """Say how long to wait for ranks to open a group: not for ever where one may be gone."""
        fault = self._generation.fault
        return CONNECT_WITH_STOPPED_S if fault and fault.kind == "stop" else CONNECT_S

    # ------------------------------------------------------------ faults

    def _strike(self, fault: Fault, event: Event) -> None:
        """Be the victim."""
        if fault.kind in DEADLY:
            self._striker = strike_later(lambda: die(fault.kind, self._say_when), fault.delay_s)
        elif fault.kind == "reset":
            dice = random.Random(self._dice.random())
            self._striker = strike_later(lambda: self._reset(dice), fault.delay_s)
        elif fault.kind == "exception":
            self._leave_by_exception()
        elif fault.kind == "late":
            self._say_when(time.monotonic())
            # Too late, and back before anybody gives it up for dead.
            time.sleep(1.3 * self._generation.timeout_s)
        elif isinstance(event, Call) and fault.group in self._callers:
            self._say_when(time.monotonic())
            communicator = self._callers[fault.group].communicator
            if fault.kind == "abort":
                communicator.abort("the soak says so")
            elif fault.kind == "leave":
                self._finish(of_group=fault.group)
                self._leave(fault.group)
                self._broken.add(fault.group)
                if fault.group == WORLD:
                    raise _OverError
            else:
                self._call(replace(event, count=event.count + 1))

    def _leave_by_exception(self) -> None:
        self._say_when(time.monotonic())
        error = ValueError("the soak raised this")
        for caller in self._callers.values():
            caller.communicator.__exit__(ValueError, error, None)
        raise _OverError

    def _reset(self, dice: random.Random) -> None:
        """Break connections of communicators that stand: what is being made is not repaired."""
        standing = [caller.communicator for caller in tuple(self._callers.values())]
        reset_some(
            dice, {one for comm in standing for one in tuple(comm._sockets._inodes.values())}
        )

    def _say_when(self, at_s: float) -> None:
        with self._telling:
            self._tell.send(("fault", at_s))

    # ------------------------------------------------------------ the end of a communicator

    def _fail(self, group: str, error: CommunicatorError) -> None:
        """Note what was told; go on without a group, and not without the world.

        Going on is what keeps ranks in step: whoever has not heard of a death yet calls the world
        next as everybody does, and hears of it there.
        """
        if error.cause == "timed out" and error.collective is None:
            self.outcome.num_unanswered += 1  # one message's own end: the communicator goes on
            return
        self._note(group, error)
        self._running = [one for one in self._running if one[1] != group]
        if group != WORLD:
            self._leave(group)
            return
        # Ranks that wait for this one in a group are told so.
        for other in [other for other in self._callers if other != WORLD]:
            self._leave(other)
        raise _OverError

    def _leave(self, group: str) -> None:
        caller = self._callers.pop(group, None)  # it may have failed meanwhile
        if caller is not None:
            caller.communicator.close()

    def _note(self, group: str, error: CommunicatorError) -> None:
        """Keep the first story of each group."""
        if group in self._broken:
            return
        self._broken.add(group)
        told = (error.rank, error.host, error.pid, error.cause, error.collective, error.sequence)
        story = Story(group, type(error).__name__, str(error), told, time.monotonic())
        self.outcome.stories.append(story)

    def _await_news(self) -> None:
        """Go on calling until the end of a rank is noticed, however late it comes."""
        fault, limit_s = self._generation.fault, time.monotonic() + _STUCK_S
        number = _AFTERWARDS
        while fault is not None and fault.kind in FINAL and time.monotonic() < limit_s:
            number += 1
            self._call(replace(_SMALL, number=number))

    def _shrink(self) -> None:
        """Go on with the survivors of a death, in half of the generations that have one."""
        generation, fault = self._generation, self._generation.fault
        if fault is None or fault.kind not in GONE or not generation.shrinks:
            return
        began_s = time.monotonic()
        smaller = self._callers[WORLD].communicator.shrink(timeout_s=_SHRINK_S)
        caller = Caller(smaller, generation.seed, generation.index)
        self._callers[WORLD] = caller
        expected = (generation.world_size - 1, self._rank - (self._rank > fault.victim))
        if (caller.size, caller.rank) != expected:
            raise WrongResult(f"shrink: (size, rank) {(caller.size, caller.rank)}, not {expected}")
        calls = [one for one in generation.events if isinstance(one, Call) and one.group == WORLD]
        caller.start(_SMALL).finish()
        self.outcome.shrunk_after_s = time.monotonic() - began_s
        for call in calls[:_AFTER_SHRINKING]:
            self._call(replace(call, root=call.root % caller.size, waits=0))

    def _close(self) -> None:
        if self._striker is not None:
            self._striker.join()  # it holds copies of descriptors
        self._running.clear()
        for caller in self._callers.values():
            with contextlib.suppress(CommunicatorError):  # closed already
                counted = caller.communicator.statistics()
                self.outcome.num_repairs += counted["devices"]["tcp"]["reconnects"]
            caller.communicator.close()
        self._callers.clear()


def resources() -> dict[str, int]:
    """Count what a process can leak."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    with open("/proc/self/maps", encoding="ascii") as file:
        mappings = sum(1 for _ in file)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": mappings,
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def settled_resources(before: dict[str, int]) -> dict[str, int]:
    """Count them once they are no more than before; threads that were told to end take a moment."""
    limit_s = time.monotonic() + _SETTLE_S
    while True:
        found = resources()
        more = any(found[what] > before.get(what, 0) for what in ("descriptors", "threads"))
        if not more or time.monotonic() > limit_s:
            return found
        time.sleep(0.02)


@dataclass(frozen=True)
class Place:
    """Where a process of a soak runs and whom it belongs to."""

    namespace: str | None
    address: str
    port: int
    interfaces: str | None
    seed: int
    limits: Limits
    stacks: str
    """File for the stacks of a process that hangs."""


def serve(pipe: connection.Connection, place: Place) -> None:
    """Be a process of a soak until the command closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's to handle
    if place.namespace is not None:
        enter(place.namespace)  # before there is any other thread
    threading.Thread(target=_end_with_parent, daemon=True).start()
    stacks = open(place.stacks, "a", encoding="utf-8")  # noqa: SIM115  # open to the end
    os.dup2(stacks.fileno(), 2)  # torch's store complains of every rank that is gone
    faulthandler.register(signal.SIGUSR1, stacks)
    logging.basicConfig(stream=stacks)  # the library tells of every path that breaks
    os.environ |= {"MASTER_ADDR": place.address, "MASTER_PORT": str(place.port)}
    if place.interfaces is not None:
        os.environ["HCCL_SOCKET_IFNAME"] = place.interfaces
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    torch.set_num_threads(1)
    store = TCPStore(place.address, place.port, is_master=False, wait_for_workers=False)
    pipe.send(("ready", None))
    before: dict[str, int] = {}
    with contextlib.suppress(EOFError):
        while True:
            index, rank = pipe.recv()
            outcome = _one(draw(place.seed, index, place.limits), rank, store, pipe)
            before = outcome.resources = settled_resources(before) if before else resources()
            pipe.send(("end", outcome))


def _one(generation: Generation, rank: int, store: Any, pipe: connection.Connection) -> Outcome:
    os.environ |= generation.settings
    walk = Walk(generation, rank, store, pipe)
    try:
        walk.walk()
    except WrongResult as wrong:
        walk.outcome.wrong = str(wrong)
    except BaseException:
        walk.outcome.wrong = traceback.format_exc()
    return walk.outcome


def _end_with_parent() -> None:
    """End when the command is gone, even in the middle of a call."""
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
