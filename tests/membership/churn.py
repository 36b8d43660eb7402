"""Members that are killed, join, leave, merge and split, again and again: churn.py WAY EVENTS SEED.

WAY `reconfigure`: handles and epochs, in several groups. WAY `grow`: `shrink` after deaths, `grow`
for new ranks, in one group. Members make collectives all the time between two events, and a part of
the kills strikes while members connect. Checked of each event: every sum, that all survivors name
the same members, and how long it took from the last kill, or the first command, until all of a
group had made a collective again. The last line is a JSON object of seconds, wall time and
`quiet_clock`'s.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
import harness_path  # noqa: F401
from quiet_clock import HANG_S, Moment

from hccl_py import Communicator, CommunicatorError, UniqueId, get_unique_id
from hccl_py.membership.reconfigure import Member
from hccl_py.transport.errors import HcclError
from hccl_py.transport.network.identity import Identity

TIMEOUT_S = 60.0
LIMIT_S = 2.0
MOST = 6
_fork = multiprocessing.get_context("fork")


# A member.


class Wrong(Exception):  # noqa: N818
    """A promise was broken."""


def members_of(comm: Communicator) -> list[int]:
    """Return the processes of all ranks, by a checked collective."""
    n = comm.world_size
    pids = np.empty(n, np.int64)
    comm.all_gather(pids, np.array([os.getpid()]))
    step(comm, False)
    return pids.tolist()


def step(comm: Communicator, stops: bool) -> bool:
    """Check a sum; return whether any rank stops."""
    n = comm.world_size
    data = np.full(3000, 1 << 8 * comm.rank, np.int64)  # a rank that counts twice shows
    data[-1] = stops
    comm.all_reduce(data)
    if set(data[:-1].tolist()) != {sum(1 << 8 * rank for rank in range(n))}:
        raise Wrong(f"{comm}: {set(data.tolist())}")
    return bool(data[-1])


class Process:
    """One member, which obeys its controller."""

    def __init__(self, pipe: Connection, node: str) -> None:
        self.pipe, self.comm = pipe, None
        self.identity = Identity.of_this_process(node)
        self.member = Member()

    def run(self) -> None:
        self.pipe.send(("handle", self.member.handle))
        while True:
            self.work()
            word, *arguments = self.pipe.recv()
            try:
                self.pipe.send(getattr(self, word)(*arguments))
            except HcclError as error:
                self.pipe.send(("failed", f"{type(error).__name__}: {error}"))

    def work(self) -> None:
        """Make collectives until the controller has a word for any of the group."""
        try:
            while self.comm is not None and not step(self.comm, self.pipe.poll()):
                pass
        except CommunicatorError:
            pass  # a member was killed, or went on to its next group

    def joined(self, made: Communicator) -> tuple[Any, ...]:
        self.comm = made
        return "joined", made.rank, members_of(made)

    def make(self, store: Any, rank: int, n: int) -> Communicator:
        return Communicator(store, rank, n, timeout_s=TIMEOUT_S, identity=self.identity)

    def epoch(self, uuid: int, handles: list[str]) -> tuple[Any, ...]:
        epoch = self.member.epoch(uuid, handles)
        if self.comm is not None:
            self.comm.close()
            self.comm = None
        return self.joined(epoch.connect(TIMEOUT_S, self.make))

    def leave(self) -> None:
        if self.comm is not None:
            self.comm.close()
        os._exit(0)

    def unique_id(self) -> tuple[Any, ...]:
        return "id", bytes(get_unique_id())

    def join(self, uid: bytes, rank: int, n: int) -> tuple[Any, ...]:
        return self.joined(self.make(UniqueId(uid), rank, n))

    def grow(self, uid: bytes, num_new: int) -> tuple[Any, ...]:
        assert self.comm is not None
        return self.joined(self.comm.grow(uid, num_new, timeout_s=TIMEOUT_S))

    def shrink(self) -> tuple[Any, ...]:
        assert self.comm is not None
        return self.joined(self.comm.shrink())


def be_member(pipe: Connection, node: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Process(pipe, node).run()
    except BaseException as error:
        pipe.send(("wrong", repr(error)))
        raise


# The controller.


class Handle:
    """The controller's end of one member."""

    def __init__(self, number: int) -> None:
        self.pipe, there = _fork.Pipe()
        node = f"node-{number % 2}"
        self.process = _fork.Process(target=be_member, args=(there, node), daemon=True)
        self.process.start()
        there.close()
        self.text = self.answer()[1]

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def answer(self) -> tuple[Any, ...]:
        if not self.pipe.poll(HANG_S):
            raise Wrong(f"pid {self.pid} hangs")
        answer: tuple[Any, ...] = self.pipe.recv()
        if answer[0] == "wrong":
            raise Wrong(answer[1])
        return answer

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()

    def leave(self) -> None:
        self.pipe.send(("leave",))
        self.process.join(HANG_S)
        if self.process.exitcode != 0:
            raise Wrong(f"pid {self.pid} left with {self.process.exitcode}")
        self.pipe.close()


Group = list[Handle]


class Controller:
    """Decides on the events, all by one seed."""

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)
        self.started = 0
        self.uuid = 0
        self.failed: list[str] = []
        self.story: list[str] = []
        self.began: Moment | None = None  # the last disturbance of the group that connects
        self.walls: list[float] = []
        self.quiets: list[float] = []

    def disturbed(self) -> None:
        """Begin to count the time of a group."""
        self.began = Moment.now()

    def connected_again(self) -> None:
        """End it."""
        assert self.began is not None
        self.walls.append(time.monotonic() - self.began.taken_s)
        self.quiets.append(Moment.now() - self.began)
        self.began = None

    def new(self, count: int) -> Group:
        self.started += count
        return [Handle(self.started - i) for i in range(count)]

    def order(self, orders: list[tuple[Handle, tuple[Any, ...]]], victim: Handle | None) -> Group:
        """Give orders, perhaps kill a member meanwhile; return the group, or [] if it failed."""
        began_s = time.monotonic()
        if self.began is None:
            self.disturbed()
        self.story.append(f"{orders[0][1][0]} of {len(orders)}")
        for handle, words in orders:
            handle.pipe.send(words)
        if victim is not None:
            time.sleep(self.chance.uniform(0.0, 0.1))
            self.story.append(f"kill rank {[one for one, _ in orders].index(victim)}")
            self.disturbed()
            victim.kill()
        found = []
        for handle, _ in orders:
            if handle is victim:
                continue
            kind, *rest = handle.answer()
            found.append((handle, rest if kind == "joined" else None))
            if kind == "failed":
                self.failed.append(rest[0])
                self.story.append(f"failed {time.monotonic() - began_s:.1f} s {rest[0]}")
        if any(rest is None for _, rest in found):
            if victim is None:
                raise Wrong(f"nobody was killed: {self.failed[-1]}: {found}")
            return []
        group = [handle for handle, _ in orders]
        expected = [(one, [rank, [each.pid for each in group]]) for rank, one in enumerate(group)]
        if victim is None and found != expected:
            seen = [rest for _, rest in found]
            raise Wrong(f"after {time.monotonic() - began_s:.1f} s: {seen}, not {expected}")
        if victim is not None:
            return []
        self.connected_again()
        return group

    def one_of(self, group: Group, chance: float) -> Handle | None:
        is_struck = len(group) > 1 and self.chance.random() < chance
        return self.chance.choice(group) if is_struck else None


class Reconfiguring(Controller):
    """Groups whose members get handles."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.groups = self.connected([self.new(3)])

    def connected(self, groups: list[Group]) -> list[Group]:
        """Connect groups one by one; kill some members meanwhile."""
        made = []
        for group in groups:
            victim = self.one_of(group, 0.2)
            while group:
                self.uuid += 1
                orders = [
                    (one, ("epoch", self.uuid, [each.text for each in group])) for one in group
                ]
                done = self.order(orders, victim)
                if done:
                    made.append(done)
                    break
                group, victim = [one for one in group if one is not victim], None
        return made

    def prepare(self) -> list[Group]:
        """Return groups to connect anew; new members have started."""
        touched = self.groups.pop(self.chance.randrange(len(self.groups)))
        size = sum(map(len, self.groups)) + len(touched)
        kinds = ["kill"] * 3 + ["leave", "join", "join", "split", "again", "shuffle"]
        kind = self.chance.choice(kinds)
        if self.groups and self.chance.random() < 0.3:
            touched = touched + self.groups.pop()  # a merge
        if kind in ("kill", "leave") and size > 2 and len(touched) > 1:
            gone = touched.pop(self.chance.randrange(len(touched)))
            self.disturbed()
            (gone.kill if kind == "kill" else gone.leave)()
        elif (kind == "join" and size < MOST) or size <= 2:
            touched = touched + self.new(min(self.chance.randint(1, 2), MOST - size))
        elif kind == "shuffle":
            self.chance.shuffle(touched)
        elif kind == "split" and len(touched) > 1:
            if self.chance.random() < 0.3:
                return [[one] for one in touched]
            cut = self.chance.randrange(1, len(touched))
            return [touched[:cut], touched[cut:]]
        return [touched]

    def event(self) -> None:
        self.groups += self.connected(self.prepare())
        if not self.groups:
            self.groups = self.connected([self.new(2)])

    def end(self) -> None:
        for group in self.groups:
            for one in group:
                one.pipe.send(("leave",))
            for one in group:
                one.process.join()


class Growing(Controller):
    """One communicator that shrinks and grows."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.group = self.new(1)
        self.order([(self.group[0], ("epoch", 1, [self.group[0].text]))], None)
        self.grow(2)

    def shrink(self) -> None:
        """Have the survivors of a death shrink; another one may die meanwhile."""
        while True:
            victim = self.one_of(self.group[1:], 0.2) if len(self.group) > 3 else None
            done = self.order([(one, ("shrink",)) for one in self.group], victim)
            if done:
                self.group = done
                return
            self.group = [one for one in self.group if one is not victim]

    def grow(self, count: int) -> None:
        new = self.new(count)
        victim = self.one_of(self.group, 0.2)  # nobody can miss a new rank that never came
        maker = self.chance.choice(new)
        maker.pipe.send(("unique_id",))
        uid = maker.answer()[1]
        size = len(self.group) + count
        orders = [(one, ("grow", uid, count)) for one in self.group]
        orders += [(one, ("join", uid, len(self.group) + i, size)) for i, one in enumerate(new)]
        done = self.order(orders, victim)
        if done:
            self.group = done
            return
        for one in new:
            one.leave()
        self.group = [one for one in self.group if one is not victim]
        self.shrink()

    def event(self) -> None:
        if len(self.group) > 1 and (len(self.group) >= MOST or self.chance.random() < 0.5):
            gone = self.group.pop(self.chance.randrange(len(self.group)))
            self.disturbed()
            gone.kill()
            self.shrink()
        else:
            self.grow(self.chance.randint(1, min(2, MOST - len(self.group))))

    def end(self) -> None:
        for one in self.group:
            one.pipe.send(("leave",))
        for one in self.group:
            one.process.join()


def main(way: str, num_events: int, seed: str) -> None:
    print(f"churn.py {way} {num_events} {seed}", flush=True)
    controller = {"reconfigure": Reconfiguring, "grow": Growing}[way](seed)
    for _ in range(num_events):
        controller.story = []
        before = len(controller.quiets)
        try:
            controller.event()
        except Wrong:
            print("wrong:", *controller.story, sep="\n  ", flush=True)
            raise
        if max(controller.quiets[before:], default=0) > LIMIT_S:
            print(f"{max(controller.quiets[before:]):.1f} s:", *controller.story, sep="\n  ")
    controller.end()
    found: dict[str, Any] = {"events": num_events, "processes": controller.started}
    found["failed"] = len(controller.failed)
    for name, times in (("wall", controller.walls), ("quiet", controller.quiets)):
        ordered = sorted(times)
        for share in (50, 90, 99, 100):
            place = max(0, -(-len(ordered) * share // 100) - 1)
            found[f"{name}_p{share}"] = round(ordered[place], 3)
    for text in sorted(set(controller.failed)):
        print(text)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
