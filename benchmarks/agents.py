"""Many agents of hccl-launch on one machine: `python -m benchmarks.agents 64 256`.

Every agent is an `hccl-launch --node-rank I`, as if each had a host. A job that runs `true` gives
the seconds from the first start to the last end, and the CPU time of all processes. The table also
has the CPU time of a Python that does nothing, measured right after, because no agent starts with
less and machines differ. A second job runs `sleep`; memory is read while its ranks run. The exit
code is 1 if an agent failed.
"""

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import parser_of_command
from hccl_py.command_line import parse_positive
from hccl_py.schedulers.ports import free_port

_COMMAND = Path(sys.executable).with_name("hccl-launch")
_TIMEOUT_S = 300.0
_CHECK_EVERY_S = 0.2
_STARTS = 20
_MIB = 1024.0

Agents = list["subprocess.Popen[str]"]


class Memory(NamedTuple):
    """Memory of one kind of process, in MiB, as the mean over all agents."""

    rss: float
    pss: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure jobs of several sizes and print the table."""
    parser = parser_of_command("benchmarks.agents", __doc__ or "")
    parser.add_argument("num_agents", type=parse_positive, nargs="+")
    parser.add_argument(
        "--rounds", type=parse_positive, default=1, help="rounds, of which the best is printed (1)"
    )
    args = parser.read(argv)
    print("MiB of each hccl-launch and agent; CPU time of both and of the rank\n")
    print("agents  seconds  ms CPU/agent  ms of a Python  RSS, PSS: launch    RSS, PSS: agent")
    for num_agents in args.num_agents:
        elapsed_s, cpu_s = min(_run_to_the_end(num_agents) for _ in range(args.rounds))
        python_s = _python_s()
        both = (value for memory in _memory(num_agents) for value in memory)
        costs = f"{elapsed_s:7.1f}  {1000 * cpu_s / num_agents:12.0f}  {1000 * python_s:13.0f}"
        memory = "  ".join(f"{value:6.1f}" for value in both)
        print(f"{num_agents:6}  {costs}  {memory}", flush=True)
    return 0


def _run_to_the_end(num_agents: int) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a job that does nothing."""
    before_s, cpu_before_s = time.monotonic(), _cpu_s()
    with _job(num_agents, "true") as agents:
        for agent in agents:
            _, errors = agent.communicate(timeout=_TIMEOUT_S)
            if agent.returncode:
                raise SystemExit(f"an agent failed: {errors}")
    return time.monotonic() - before_s, _cpu_s() - cpu_before_s


def _python_s() -> float:
    before_s = _cpu_s()
    for _ in range(_STARTS):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (_cpu_s() - before_s) / _STARTS


def _memory(num_agents: int) -> tuple[Memory, Memory]:
    """Return the memory of hccl-launch and of agents while all ranks run."""
    with _job(num_agents, "sleep", str(_TIMEOUT_S)) as commands:
        deadline_s = time.monotonic() + _TIMEOUT_S
        pids: list[int] = []
        while len(pids) < num_agents:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{len(pids)} of {num_agents} ranks run after {_TIMEOUT_S:g} s")
            time.sleep(_CHECK_EVERY_S)
            pids = [
                agent
                for command in commands
                for agent in _children(command.pid)
                if _children(agent)
            ]
        costs = _mean([command.pid for command in commands]), _mean(pids)
        commands[0].send_signal(signal.SIGTERM)
        for command in commands:
            command.communicate(timeout=_TIMEOUT_S)
    return costs


@contextmanager
def _job(num_agents: int, *program: str) -> Iterator[Agents]:
    """Start all agents of a job; kill those that remain at the end."""
    port = free_port("127.0.0.1")
    command = [str(_COMMAND), "--nnodes", str(num_agents), "--master-port", str(port)]
    agents: Agents = []
    try:
        for rank in range(num_agents):
            words = [*command, "--node-rank", str(rank), "--no-python", *program]
            agents.append(
                subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            )
        yield agents
    finally:
        for agent in agents:
            agent.kill()  # its children end with it
            agent.wait()


def _children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:  # the process has ended
        return []


def _mean(pids: Sequence[int]) -> Memory:
    sums = [0.0, 0.0]
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        values = {line.split()[0]: int(line.split()[1]) / _MIB for line in lines}
        sums = [sums[0] + values["Rss:"], sums[1] + values["Pss:"]]
    return Memory(*(total / len(pids) for total in sums))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
