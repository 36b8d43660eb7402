"""The settings of a job, which hold for all its attempts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JobSettings:
    """What the coordinator has to know of a job before any agent comes.

    Attributes:
        hosts: of the agents, as many as there are; empty where a host is not known yet.
        address: where agents of other hosts connect, for messages.
        connect_timeout_s: how long to wait for all of them.
        stop_s: between SIGTERM and SIGKILL of a rank.
        job_id: what ranks see; restarts keep it.
        master_addr, master_port: rank 0's store; empty and 0: what the first agent says.
        min_ranks: how many ranks have to go on when others fail; 0: all.
        stall_s: a rank without progress is named after so long; 0: none is.
        aliases: those of `hosts` that mean nothing on other hosts.
        only_checks: the job is preflight, in full, and no rank is started.
    """

    hosts: tuple[str, ...]
    address: str
    connect_timeout_s: float
    stop_s: float
    job_id: str
    max_restarts: int = 0
    min_ranks: int = 0
    master_addr: str = ""
    master_port: int = 0
    only_checks: bool = False
    stall_s: float = 0.0
    aliases: frozenset[str] = frozenset()
