"""The end of an attempt: why its ranks are stopped, and the outcome of the job."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hccl_py.launcher.exit_codes import LOST_NODE
from hccl_py.launcher.failure import RankFailure, cut_off, first_failure, render, title
from hccl_py.launcher.job.coordinator.agents import Agents
from hccl_py.launcher.job.layout import Attempt


@dataclass
class Ending:
    """Why the ranks are being stopped, and how long they may still run.

    Attributes:
        stop_at_s: when the ranks are asked to stop.
        end_s: when the agents count as lost.
        by_user: the reason and exit code of a user's stop.
        lost: why each agent counts as lost.
        failed: the ranks that failed, or whose agents were lost, while the job ran.
        was_stopped: whether the ranks were asked to stop.
        had_failed: a rank had failed before the user stopped the job, or an agent was lost.
    """

    stop_at_s: float = math.inf
    end_s: float = math.inf
    by_user: tuple[str, int] | None = None
    lost: dict[int, str] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    was_stopped: bool = False
    had_failed: bool = False


class Outcome(NamedTuple):
    """The outcome of the job.

    Attributes:
        exit_code: of the job; None: all ranks start again.
        text: for the coordinator's terminal.
        line: for the other hosts; empty: the text.
        first: the failure that ended the job; None: none did, or a user or lost node.
    """

    exit_code: int | None
    text: str = ""
    line: str = ""
    first: RankFailure | None = None


def outcome(ending: Ending, agents: Agents, attempt: Attempt | None) -> Outcome:
    """Decide the outcome of a job without running ranks; before an attempt only a user ends it."""
    failures = agents.failures()
    own = [each for each in failures if not each.was_stopped]
    if ending.by_user:
        return _stopped(*ending.by_user, ending.had_failed, failures, attempt)
    assert attempt is not None
    if ending.lost:
        return _lost(ending, agents, own, attempt)
    if not failures:
        return Outcome(0)
    report = render(failures, attempt.world_size, ending.was_stopped)
    if not ending.was_stopped:
        return Outcome(0, report)
    if attempt.number == attempt.max_restarts:
        first = first_failure(failures)
        return Outcome(first.shell_code, report, title(first, attempt.world_size), first)
    again = f"restart {attempt.number + 1} of {attempt.max_restarts}: all ranks start again"
    return Outcome(None, f"{report}\nhccl-launch: {again}")


def _stopped(
    why: str,
    exit_code: int,
    had_failed: bool,
    failures: Sequence[RankFailure],
    attempt: Attempt | None,
) -> Outcome:
    """Return the outcome after a user's stop, or if the job cannot continue."""
    line = f"hccl-launch: {why}; all ranks were ended"
    killed = sorted(each.rank for each in failures if each.was_killed)
    line += f"; {cut_off(killed)}" if killed else ""
    # A scheduler sends its signal to all processes of a job, so such a rank did not fail by itself.
    own = [each for each in failures if not each.was_stopped and each.shell_code != exit_code]
    if not own or attempt is None:
        return Outcome(exit_code, line)
    if had_failed:
        exit_code = first_failure(own).shell_code
    return Outcome(exit_code, f"{render(own, attempt.world_size)}\n{line}", line)


def _lost(ending: Ending, agents: Agents, own: Sequence[RankFailure], attempt: Attempt) -> Outcome:
    """Return the outcome after the loss of a node; other ranks may have raised before."""
    lines = [
        f"hccl-launch: error: {agents.name_with_ranks(index)} was lost: {why}"
        for index, why in ending.lost.items()
    ]
    reports = [render(own, attempt.world_size, ending.was_stopped)] if own else []
    if not ending.was_stopped:
        return Outcome(0, "\n".join([*reports, *lines]), lines[-1])
    first = first_failure(own) if own and ending.had_failed else None
    gone = {rank for index in ending.lost for rank in agents.ranks()[index]}
    if first is None or first.lost_a_connection or first.blames in gone:
        return Outcome(LOST_NODE, "\n".join([*reports, *lines]), lines[-1])
    return Outcome(
        first.shell_code, "\n".join([*lines, *reports]), title(first, attempt.world_size)
    )
