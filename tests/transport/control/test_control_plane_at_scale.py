"""One coordinator and 511 ranks, each with a connection of its own, on one machine.

The ranks are real as far as the wire goes (`swarm.py`), and share two processes.
"""

import multiprocessing
import os
import resource
import time

import pytest
from fake_engine import FakeEngine
from swarm import COMMUNICATOR, SECRET, WORLD_SIZE, swarm

from hccl_py.transport.control.control_plane import ControlPlane
from hccl_py.transport.control.coordinator import heartbeat_period_s
from hccl_py.transport.control.message import ControlAddress, ControlMembers
from hccl_py.transport.control.participant import Participant

NUM_PROCESSES = 2
CONNECT_S = 40.0
NUM_PERIODS = 3
VERDICT_S = 2.0


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@pytest.mark.nightly("scale")
def test_512_ranks_one_coordinator_keeps_up_and_all_hear_one_diagnosis() -> None:
    plane = ControlPlane()
    mine = plane.control_address("", None)
    nowhere = f"hccl-{os.getpid()}-none"
    others = (ControlAddress(b"%016d" % rank, nowhere) for rank in range(1, WORLD_SIZE))
    members = ControlMembers(COMMUNICATOR, 0, (mine, *others), SECRET)
    engine = FakeEngine(0)
    plane.loop.call(lambda: plane.admit(members))
    plane.loop.call(lambda: plane.attach(Participant(members, engine, plane.send)))
    forks = multiprocessing.get_context("forkserver")
    pipes, processes = [], []
    for index in range(NUM_PROCESSES):
        here, there = forks.Pipe()
        ranks = range(1 + index, WORLD_SIZE, NUM_PROCESSES)
        processes.append(forks.Process(target=swarm, args=(there, ranks, members)))
        processes[-1].start()
        pipes.append(here)
    try:
        for pipe in pipes:
            assert pipe.poll(CONNECT_S), "not all ranks got an answer"
            assert pipe.recv() == "connected"
        period_s = heartbeat_period_s(WORLD_SIZE)
        for pipe in pipes:
            pipe.send("begin")
        began_s, used_s = time.monotonic(), cpu_s()
        # A clock is what is measured against: so many heartbeats shall be answered.
        time.sleep(NUM_PERIODS * period_s)
        share = (cpu_s() - used_s) / (time.monotonic() - began_s)
        failed_s = time.monotonic()
        pipes[-1].send("fail")
        time.sleep(VERDICT_S)
        results = []
        for pipe in pipes:
            pipe.send("stop")
            assert pipe.poll(CONNECT_S)
            results.append(pipe.recv())
    finally:
        plane.loop.call(lambda: plane.leave(members))
        plane.loop.stop()
        for process in processes:
            process.join(10)
            process.kill()
    answers = [one for clients, _ in results for one in clients]
    diagnoses = [one for _, clients in results for one in clients]
    slowest_s = max(max(one) for one in answers)
    heard_s = max(adopted_s for _, adopted_s in diagnoses) - failed_s
    print(f"{share:.1%} of a core, slowest answer {slowest_s:.3f} s, diagnosis in {heard_s:.3f} s")
    assert len(answers) == WORLD_SIZE - 1
    assert all(len(one) >= NUM_PERIODS - 1 for one in answers)
    assert slowest_s < period_s
    assert share < 0.5
    assert engine.adopted is not None
    assert WORLD_SIZE - 1 in engine.adopted["reports"]
    assert all(adopted == engine.adopted for adopted, _ in diagnoses)
    assert heard_s < VERDICT_S
