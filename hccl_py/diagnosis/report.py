"""What ranks report: a failure, how far each is, its calls. What a rule finds in the reports."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hccl_py.diagnosis.record import Failure, Stage, decode
from hccl_py.fingerprint import count_of, describe, without_number
from hccl_py.transport._core import Cause
from hccl_py.transport.control.reporter import Absence


@dataclass(frozen=True)
class Progress:
    """How far a rank is; `csrc/engine/failure/failure.h` explains the fields."""

    submitted: int = 0
    finished: int = 0
    sequence: int = 0
    fingerprint: int = 0
    timeout_s: float = 0.0
    activity: str = ""
    step: int = 0
    num_steps: int = 0
    tile: int = 0
    num_tiles: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    waiting_for: tuple[int, ...] = ()
    num_transfers: int = 0

    @property
    def stage(self) -> Stage:
        """The step that the call is in."""
        return Stage(self.activity, self.step, self.num_steps, self.tile, self.num_tiles)

    @property
    def call(self) -> str:
        """Its name and number; "" if none is under way."""
        if not self.sequence:
            return ""
        return f"{describe(without_number(self.fingerprint))} number {self.sequence}"


@dataclass(frozen=True)
class EndedPeer:
    """A rank whose connections to the reporter ended."""

    rank: int
    cause: Cause
    last_sequence: int = 0
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class LoggedCall:
    """A collective that a rank made.

    Attributes:
        number: in the communicator.
        fingerprint: without its number, so that equal calls are equal.
        num_bytes: given or got, whichever are more.
        site: the user's line, with HCCL_DEBUG=1.
    """

    number: int
    fingerprint: int
    num_bytes: int
    site: str = ""

    @property
    def num_elements(self) -> int | None:
        """Number of elements; None where ranks may differ in it."""
        return count_of(self.fingerprint, self.num_bytes)

    @property
    def key(self) -> tuple[int, int | None]:
        """Equal for equal calls."""
        return self.fingerprint, self.num_elements

    def __str__(self) -> str:
        """Name the call, without its number."""
        return describe(self.fingerprint, self.num_elements)


@dataclass(frozen=True)
class OtherCall:
    """A call that the same process is in, in another communicator.

    Attributes:
        communicator_id: of that communicator.
        name: of that communicator.
        call: name and number.
        stuck: a thread waits for it, without progress for two seconds.
        waits_for: host and pid of the ranks without which it cannot go on.
    """

    communicator_id: bytes
    name: str
    call: str
    stuck: bool
    waits_for: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Report:
    """What one rank knows when somebody asks.

    Attributes:
        failure: what it observed; None: nothing.
        progress: of its engine.
        ended: ranks whose connections ended.
        calls: its last collectives, oldest first.
        single_threaded: one thread makes all calls of the process.
        stuck: a thread waits for the call under way, without progress for two seconds.
        stalled_s: how long the call under way has made no progress.
        other_calls: of the same process, in other communicators.
        window_s: how long its caller can wait for the other reports; None: as long as usual.
    """

    failure: Failure | None = None
    progress: Progress = Progress()
    ended: tuple[EndedPeer, ...] = ()
    calls: tuple[LoggedCall, ...] = ()
    single_threaded: bool = False
    stuck: bool = False
    stalled_s: float = 0.0
    other_calls: tuple[OtherCall, ...] = ()
    window_s: float | None = None

    def packed(self) -> dict[str, Any]:
        """Return what msgpack can carry."""
        return asdict(self)

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> "Report":
        """Read what `packed` returned; raises TypeError or ValueError for anything else."""
        report: Report = decode(cls, packed)
        return report

    def lost(self) -> set[int]:
        """Return the ranks that ended without a goodbye."""
        return {one.rank for one in self.ended if one.cause is not Cause.LEFT}

    def call(self, number: int) -> LoggedCall | None:
        """Return the collective of that number, if it is remembered."""
        return next((one for one in self.calls if one.number == number), None)


@dataclass(frozen=True)
class Reports:
    """All reports of a communicator, and why the other ranks sent none.

    Attributes:
        by_rank: the reports.
        absent: why the others sent none.
        processes: host and pid of every rank.
    """

    by_rank: Mapping[int, Report]
    absent: Mapping[int, Absence]
    processes: Sequence[tuple[str, int]]

    def failures(self, *causes: Cause) -> dict[int, Failure]:
        """Return the failures with one of these causes, by the rank that observed them."""
        return {
            rank: one.failure
            for rank, one in sorted(self.by_rank.items())
            if one.failure is not None and one.failure.cause in causes
        }

    def first_call(self, failures: Iterable[Failure]) -> tuple[int, int]:
        """Return number and fingerprint of the first call that could not end; 0, 0: none."""
        calls = [(one.sequence, one.call) for one in failures if one.sequence and one.call]
        under_way = [one.progress for one in self.by_rank.values()]
        calls = calls or [(one.sequence, one.fingerprint) for one in under_way if one.sequence]
        sequence, fingerprint = min(calls, default=(0, 0))
        return sequence, without_number(fingerprint)

    def name(self, *some: int) -> str:
        """Name ranks with host and process."""
        known = [rank for rank in some if 0 <= rank < len(self.processes)]
        if not known:
            return "a rank"
        named = [f"{rank} (host {{}}, pid {{}})".format(*self.processes[rank]) for rank in known]
        return f"rank{'s' * (len(named) > 1)} {listing(named)}"


class Finding(NamedTuple):
    """A cause, the rank that caused it, the call that met it, and the text.

    Attributes:
        cause: its kind.
        rank: None: nobody in particular.
        call: number and fingerprint; 0, 0: none was under way.
        text: what happened, without the name of the call.
        also: ids of other communicators that cannot go on either.
    """

    cause: Cause
    rank: int | None
    call: tuple[int, int]
    text: str
    also: tuple[bytes, ...] = ()


def listing(names: Sequence[str]) -> str:
    """Join names: a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def ranks(numbers: Iterable[int]) -> str:
    """Name ranks by their numbers: `rank 2`, `ranks 0-3, 7`."""
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 3 else [str(number) for number in run]
    return f"rank{'s' * (len(ordered) > 1)} {', '.join(parts)}"


def sites(calls: Mapping[int, LoggedCall | None]) -> str:
    """Return where ranks made a call, if they know: ` at train.py:41`."""
    by_site: dict[str, list[int]] = {}
    for rank, call in calls.items():
        if call is not None and call.site:
            by_site.setdefault(call.site, []).append(rank)
    if len(by_site) == 1:
        return f" at {next(iter(by_site))}"
    named = [f"{site} ({ranks(some)})" for site, some in list(by_site.items())[:6]]
    return f" at {', '.join(named)}" if named else ""
