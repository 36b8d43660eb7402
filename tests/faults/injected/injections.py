"""Failures at random moments of running collectives: what befalls which rank, and who does it.

    result = play(Injection("sigkill", Layout("4", 4, 1), round_number=7))
    result.judge()

`injected_ranks.py` is what the ranks run. Everything that is random follows from kind, layout and
round, so a round that failed can be played again; only how far the ranks are when it strikes, the
machine decides.
"""

import dataclasses
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from namespaces import Hosts
from quiet_clock import Moment
from ranks import run_ranks
from thread_ranks import wait_until

RAISE_S = 2.0
"""How long after detection the last survivor may raise."""
CLOSE_S = 2.0
STOPPED_TIMEOUT_S = 1.0
"""Timeout of the calls of a round with a stopped rank."""

FATAL = {
    "sigkill": "killed from outside, or by itself",
    "sigsegv": "a crash in the process",
    "os_exit": "os._exit from another thread",
    "exception": "an exception that nobody catches",
    "control_closed": "a control connection inside the node is closed",
    "control_garbage": "bytes that are no message on a control connection inside the node",
    "half_frame": "a part of a frame, then death",
    "full_disk": "killed while its logs and the others' are on a full disk",
    "out_of_memory": "the process may have no more memory",
    "cut_off": "all connections to other nodes closed, for good",
}
"""After these all ranks that are still there raise."""
HARMLESS = {
    "path_closed": "a connection to another node is closed",
    "path_reset": "a connection to another node is reset",
    "path_half_frame": "a part of a frame on a connection to another node, then its end",
    "path_garbage": "bytes that are no frame on a connection to another node",
    "coordinator_closed": "connections of the control plane are closed",
    "noise": "frames to other nodes are lost, doubled, delayed and spoilt",
}
"""After these all go on, with right results."""
SPOKEN = {
    "abort": "Communicator.abort from another thread",
    "leave": "the rank closes the communicator",
    "mismatch": "the rank makes another call than the others",
    "late": "the rank comes after the timeout",
}
"""The rank lives on, and all others raise; only the soak plays these, on a Communicator."""
STUCK = {"sigstop", "late"}
"""Only a timeout tells of these."""
DEADLY = {"sigkill", "sigsegv", "os_exit", "exception", "half_frame", "full_disk", "out_of_memory"}
"""The victim is not there to raise."""


@dataclass(frozen=True)
class Layout:
    """How many ranks on how many nodes."""

    name: str
    world_size: int
    num_nodes: int

    def node_of(self, rank: int) -> int:
        return rank * self.num_nodes // self.world_size


ONE_NODE = Layout("4", 4, 1)
TWO_NODES = Layout("2x4", 8, 2)


@dataclass(frozen=True)
class Injection:
    """One round; what is not given here is drawn, from what is."""

    kind: str
    layout: Layout
    round_number: int
    api: str = "native"
    folder: str = ""
    extended: bool = False
    """With subgroups between the calls, `shrink` after a death, and drawn settings: the soak."""

    @property
    def seed(self) -> str:
        return f"{self.kind}/{self.layout.name}/{self.round_number}"

    @property
    def chance(self) -> random.Random:
        """Return the beginning of the round's random numbers."""
        return random.Random(self.seed)

    @property
    def victim(self) -> int:
        return self.chance.randrange(self.layout.world_size)

    @property
    def after(self) -> int:
        """How many calls the victim starts before it can strike."""
        return random.Random(self.seed + "/after").randrange(30)

    @property
    def delay_s(self) -> float:
        """How long after that it strikes."""
        return random.Random(self.seed + "/delay").random() * 0.02

    @property
    def variant(self) -> int:
        """A number that chooses between the ways in which a kind can happen."""
        return random.Random(self.seed + "/variant").randrange(1 << 20)

    @property
    def num_calls(self) -> int:
        """How many calls the ranks make in a round that does no harm."""
        return self.after + 40

    @property
    def timeout_s(self) -> float:
        return STOPPED_TIMEOUT_S if self.kind in STUCK else 60.0

    @property
    def is_from_outside(self) -> bool:
        return self.kind in ("sigkill", "sigsegv", "sigstop", "full_disk") and self.variant % 2 == 0

    @property
    def names_victim(self) -> bool:
        return self.kind in {*DEADLY, "sigstop", *SPOKEN}

    def mark(self, what: str) -> Path:
        """Return the file by which the processes of a round tell each other what has happened."""
        return Path(self.folder, what)


@dataclass(frozen=True)
class Story:
    """What one rank saw."""

    rank: int
    pid: int
    num_checked: int
    error: str | None = None
    text: str = ""
    fields: tuple[object, ...] = ()
    raised: Moment | None = None
    later_texts: tuple[str, ...] = ()
    close_s: float = 0.0
    """On the quiet clock."""
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What came of a round; `struck` is when, on the clocks of the stories."""

    injection: Injection
    victim_pid: int
    struck: Moment
    stories: tuple[Story, ...]

    @property
    def worst_s(self) -> float:
        """How long after the strike the last raised, or for a stopped rank after the timeout."""
        return self._worst(lambda raised: raised.s - self.struck.s)

    def _worst(self, after_strike: Callable[[Moment], float]) -> float:
        is_stopped = self.injection.kind in STUCK
        raised = [
            after_strike(story.raised)
            for story in self.stories
            # A rank that is stuck raises once it goes on.
            if story.error
            and story.raised
            and not (is_stopped and story.rank == self.injection.victim)
        ]
        return max(raised, default=0.0) - (self.injection.timeout_s if is_stopped else 0.0)

    @property
    def leftovers(self) -> list[str]:
        return [f"rank {one.rank}: {what}" for one in self.stories for what in one.leftovers]

    def judge(self) -> None:
        """Fail with the promises that are not kept, the seed, and all that was seen."""
        broken = [*self._errors_broken(), *self._ends_broken()]
        if not broken:
            return
        seen = "\n".join(map(str, self.stories))
        raise AssertionError(
            f"{self.injection} of rank {self.injection.victim}, pid {self.victim_pid}:\n"
            + "\n".join(f"- not so: {promise}" for promise in broken)
            + f"\n{seen}"
        )

    def _errors_broken(self) -> Iterator[str]:
        if self.injection.kind in HARMLESS:
            if any(story.error for story in self.stories):
                yield "nobody raises"
            return
        left = self.injection.victim if self.injection.kind == "leave" else None
        told = [story for story in self.stories if story.rank != left]
        if not all(story.error for story in told):
            yield "every survivor raises"
            return
        if not (worst_s := self._worst(lambda raised: raised - self.struck)) < RAISE_S:
            yield f"all raise in time: {worst_s:.3f} s"
        first = told[0]
        for story in told:
            theirs = (story.error, story.text, story.fields)
            if theirs != (first.error, first.text, first.fields):
                yield f"ranks {first.rank} and {story.rank} tell the same"
            if not set(story.later_texts) <= {story.text}:
                yield f"rank {story.rank} tells the same again"
        if self.injection.names_victim:
            rank, _, pid, *_ = first.fields
            # Where only two have made the call, either may be wrong: both are named.
            victim = self.injection.victim
            alike = all(f"rank {one} called " in first.text for one in (rank, victim))
            if (rank, pid) != (victim, self.victim_pid) and not alike:
                yield f"the victim is named: {(rank, pid)}"
        # Both ends of a connection live, and may be asked before they notice it.
        runs = re.findall(r"(\d+)(?:-(\d+))?", first.text.partition("look at the output of")[2])
        suspects = {rank for one, last in runs for rank in range(int(one), int(last or one) + 1)}
        if self.injection.kind == "cut_off" and self.injection.victim not in suspects:
            yield f"the victim is one of those to look at: {suspects}"
        # Of another node's process one cannot know it so soon.
        if self.injection.kind in ("control_closed", "control_garbage") and " died" in first.text:
            yield "nobody is said to have died"

    def _ends_broken(self) -> Iterator[str]:
        for story in self.stories:
            if not story.close_s < CLOSE_S:
                yield f"rank {story.rank} closes in time: {story.close_s:.3f} s"
        if self.leftovers:
            yield f"nothing is left: {self.leftovers}"


def play(
    run: Callable[..., Story | None], injection: Injection, hosts: Hosts | None = None
) -> Result:
    """Play one round; `run(rank, world_size, injection)` is every rank."""
    layout = injection.layout
    with tempfile.TemporaryDirectory(prefix="injection-") as folder:
        injection = dataclasses.replace(injection, folder=folder)

        def env(rank: int) -> dict[str, str]:
            own = injection.mark(f"tmp-{rank}")
            own.mkdir()
            # What the flight recorder writes is meant to stay; on a full disk it cannot be written.
            traces = own if injection.kind == "full_disk" else injection.mark(f"traces-{rank}")
            settings = {
                "TMPDIR": str(own),
                "HCCL_TRACE_DIR": str(traces),
                "HCCL_CONNECTIONS": str(1 + injection.variant % 2),
            }
            if injection.kind == "noise" or (injection.extended and injection.variant % 3 == 0):
                settings["HCCL_CHECKSUM"] = "1"
            is_unix = injection.kind.startswith("control_")
            if injection.extended and injection.variant % 4 == 0 and not is_unix:
                settings["HCCL_TRANSPORT"] = "tcp"
            return settings | ({} if hosts else {"HCCL_NODE_ID": str(layout.node_of(rank))})

        outsider = threading.Thread(target=_strike_from_outside, args=(injection,))
        outsider.start()
        victims = {injection.victim} if injection.kind in DEADLY else set()
        try:
            stories = run_ranks(
                run, layout.world_size, injection, env=env, victims=victims, hosts=hosts
            )
        finally:
            injection.mark("over").touch()
            outsider.join()
        survivors = tuple(story for story in stories if story is not None)
        struck = injection.mark("struck")
        seen = "\n".join(map(str, survivors))
        assert struck.exists(), f"{injection}:\n- not so: all goes well until the strike\n{seen}"
        pid = int(injection.mark("victim").read_text())
        return Result(injection, pid, Moment.read(struck), survivors)


def write_mark(mark: Path, text: str = "") -> None:
    """Make the file appear, whole."""
    unfinished = mark.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.rename(mark)


def note_strike(injection: Injection, pid: int) -> None:
    """Write down when it happens: now."""
    write_mark(injection.mark("victim"), str(pid))
    Moment.now().write(injection.mark("struck"))


def _strike_from_outside(injection: Injection) -> None:
    ready, over = injection.mark("ready"), injection.mark("over")
    wait_until(lambda: ready.exists() or over.exists(), "the victim works", 120)
    if over.exists():
        return
    pid = int(ready.read_text())
    if injection.is_from_outside:
        time.sleep(injection.delay_s)
        note_strike(injection, pid)
        os.kill(pid, SIGNALS[injection.kind])
    if injection.kind == "sigstop":
        others = set(range(injection.layout.world_size)) - {injection.victim}
        raised = [injection.mark(f"raised-{rank}") for rank in others]
        wait_until(lambda: over.exists() or all(map(Path.exists, raised)), "all raise", 120)
        os.kill(pid, signal.SIGCONT)


SIGNALS = {
    "sigkill": signal.SIGKILL,
    "sigsegv": signal.SIGSEGV,
    "sigstop": signal.SIGSTOP,
    "full_disk": signal.SIGKILL,
}
