"""How an attempt ends: why its ranks are stopped, and what becomes of the job."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from hccl_py.launcher.exit_codes import LOST_NODE
from hccl_py.launcher.failure import first_failure, render, title
from hccl_py.launcher.job.head.agents import Agents
from hccl_py.launcher.job.layout import Attempt


@dataclass
class Ending:
    """Why the ranks are being stopped, and until when they may run on.

    Attributes:
        stop_at_s: when they are told to stop.
        end_s: when their agents count as lost.
        by_user: why, and the exit code.
        lost: why each agent counts as lost.
        failed: the ranks that failed, or whose agents were lost, while the job ran.
        was_stopped: whether the ranks were told to stop.
    """

    stop_at_s: float = math.inf
    end_s: float = math.inf
    by_user: tuple[str, int] | None = None
    lost: dict[int, str] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    was_stopped: bool = False


class Outcome(NamedTuple):
    """What becomes of the job.

    Attributes:
        exit_code: of the job; None: all ranks start again.
        text: for the screen of the head.
        line: for the other hosts; empty: the text.
    """

    exit_code: int | None
    text: str = ""
    line: str = ""


def outcome(ending: Ending, agents: Agents, attempt: Attempt | None) -> Outcome:
    """Decide what becomes of a job of which no rank runs; only a user ends it before an attempt."""
    if ending.by_user:
        why, exit_code = ending.by_user
        return Outcome(exit_code, f"hccl-launch: {why}; all ranks were ended")
    assert attempt is not None
    failures = agents.failures()
    if ending.lost:
        # Ranks of other nodes raise because of it, or were stopped.
        raised = [one for one in failures if not one.was_stopped]
        world_size = attempt.world_size
        lines = [render(raised, world_size, ending.was_stopped)] if raised else []
        lines += [
            f"hccl-launch: error: {agents.name_with_ranks(index)} was lost: {why}"
            for index, why in ending.lost.items()
        ]
        return Outcome(LOST_NODE if ending.was_stopped else 0, "\n".join(lines), lines[-1])
    if not failures:
        return Outcome(0)
    report = render(failures, attempt.world_size, ending.was_stopped)
    if not ending.was_stopped:
        return Outcome(0, report)
    if attempt.number == attempt.max_restarts:
        first = first_failure(failures)
        return Outcome(first.shell_code, report, title(first, attempt.world_size))
    again = f"restart {attempt.number + 1} of {attempt.max_restarts}: all ranks start again"
    return Outcome(None, f"{report}\nhccl-launch: {again}")
