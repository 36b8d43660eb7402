"""One rank of a round: random calls, the strike if it is the victim, and what it saw."""

import contextlib
import dataclasses
import os
import random
import tempfile
from typing import NoReturn

from broken_sockets import noisy_lanes, open_socket_inodes
from ended_scripts import end_as_script
from full_disk import FullDisk
from injected_groups import GROUPS, Group
from injected_strikes import LeftError, ModelExplodedError, Striker
from injections import HARMLESS, STUCK, Injection, Story, note_strike, write_mark
from leftovers import settled_holdings, wait_for_return
from quiet_clock import Moment
from random_calls import KINDS, NativeCalls, RandomCalls

from hccl_py import Communicator, CommunicatorError

FIELDS = ("rank", "host", "pid", "cause", "collective", "sequence")


def be_rank(rank: int, world_size: int, injection: Injection) -> Story | None:
    folder = tempfile.tempdir = os.environ["TMPDIR"]
    disk = FullDisk(folder) if injection.kind == "full_disk" else None
    # What stays for the process's whole life is there afterwards: threads, registered memory.
    _warm_up(injection)
    before = settled_holdings(folder)
    story = _live(rank, injection)
    left = wait_for_return(before, folder)
    if disk is not None:
        disk.close()
    return dataclasses.replace(story, leftovers=tuple(left))


def _warm_up(injection: Injection) -> None:
    group = GROUPS[injection.api]("warm-up")
    calls = RandomCalls(group.calls, "warm-up")
    while calls.num_started < 6:
        calls.one()
    calls.finish()
    group.close()


def _live(rank: int, injection: Injection) -> Story:
    sockets_before = open_socket_inodes()
    with _noise(rank, injection):
        group = GROUPS[injection.api]("job")
        group.comm.barrier()
    group.set_timeout(injection.timeout_s)
    # A message that a stuck rank does not answer ends alone, with a timeout of its own. Where ranks
    # wait for messages, there is no other collective to compare the victim's with.
    without_ring = {*STUCK, "mismatch"}
    kinds = [kind for kind in KINDS if kind != "ring" or injection.kind not in without_ring]
    calls = RandomCalls(group.calls, injection.seed, kinds)
    striker = Striker(injection, group, sockets_before) if rank == injection.victim else None
    closes = injection.variant % 2 == 0
    error: Exception | None = None
    try:
        _work(calls, injection, striker, group)
    except group.error as failure:
        error = failure
        if striker is not None and injection.kind == "out_of_memory":
            striker.note_failure()
    except LeftError:
        return Story(rank, os.getpid(), calls.num_checked)
    except (ModelExplodedError, MemoryError) as failure:
        if striker is not None and isinstance(failure, MemoryError):
            striker.note_failure()
        _end_by_exception(group, closes, failure)
    raised = Moment.now()
    write_mark(injection.mark(f"raised-{rank}"))
    if striker is not None:
        striker.close()
    later = _later(group, calls) if error is not None else ()
    if injection.extended and injection.kind in ("sigkill", "sigsegv", "os_exit"):
        _shrink(group, injection)
    began = Moment.now()
    group.close()
    return Story(
        rank,
        os.getpid(),
        calls.num_checked,
        error and type(error).__name__,
        str(error or ""),
        tuple(getattr(error, field, None) for field in FIELDS),
        raised,
        later,
        Moment.now() - began,
    )


def _noise(rank: int, injection: Injection) -> contextlib.AbstractContextManager[object]:
    if injection.kind != "noise" or rank != injection.victim:
        return contextlib.nullcontext()
    note_strike(injection, os.getpid())
    return noisy_lanes(injection.variant)


def _work(calls: RandomCalls, injection: Injection, striker: Striker | None, group: Group) -> None:
    is_harmless = injection.kind in HARMLESS
    while not is_harmless or calls.num_started < injection.num_calls:
        if striker is not None:
            striker.look(calls.num_started)
        calls.one()
        if injection.extended and injection.api == "native" and injection.kind not in STUCK:
            _use_subgroup(calls.num_started, injection, group.comm)
    calls.finish()


def _use_subgroup(number: int, injection: Injection, comm: Communicator) -> None:
    """Now and then some of the ranks make a few calls of their own."""
    chance = random.Random(f"{injection.seed}/subgroup/{number}")
    members = chance.sample(range(comm.world_size), chance.randint(1, comm.world_size))
    if chance.random() > 0.1 or comm.rank not in members:
        return
    # The next call of the whole communicator tells what ended this one.
    told_later = () if injection.kind in HARMLESS else (CommunicatorError,)
    with contextlib.suppress(*told_later), comm.subset(members, f"part {number}") as part:
        calls = RandomCalls(NativeCalls(part), f"{injection.seed}/{number}")
        while calls.num_started < 3:
            calls.one()
        calls.finish()


def _shrink(group: Group, injection: Injection) -> None:
    """Go on with the survivors."""
    if injection.api == "native":
        with group.comm.shrink() as left:
            assert left.world_size == injection.layout.world_size - 1
            calls = RandomCalls(NativeCalls(left), f"{injection.seed}/shrunk")
            while calls.num_started < 5:
                calls.one()
            calls.finish()


def _later(group: Group, calls: RandomCalls) -> tuple[str, ...]:
    """Return what the calls in flight and one more raise."""
    texts = [str(error) for error in calls.failures(group.error)]
    try:
        group.barrier()
        texts.append("nothing")
    except group.error as error:
        texts.append(str(error))
    return tuple(texts)


def _end_by_exception(group: Group, closes: bool, error: BaseException) -> NoReturn:
    """End this process as a program that does not catch `error`."""
    if not closes:
        end_as_script(error)
    try:
        with group:
            raise error
    finally:
        os._exit(1)
