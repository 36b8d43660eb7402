"""The process with an agent only: joins the coordinator on another host, and ends with it."""

import errno
import os
import signal
import socket
import time
from typing import Any, NamedTuple

from hccl_py.launcher.exit_codes import AGENT_KILLED, LOST_NODE, MISSING_NODE, TRY_AGAIN
from hccl_py.launcher.job.agent import Agent, stopped_by, watch_signals
from hccl_py.launcher.job.channel import PROTOCOL, RETURN_S, CoordinatorLink
from hccl_py.launcher.job.layout import Hello, RankProgram
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.streams import PRINT_S, JobOutput
from hccl_py.launcher.own_lines import WaitingLines
from hccl_py.schedulers.ports import free_port
from hccl_py.transport.network.interfaces import address_towards, describe_target

_PROBE_S, _PROBE_EVERY_S = 2.0, 1.0
_SHORT_PROBE_S, _SHORT_PROBE_EVERY_S = 0.2, 0.3
_STOP_EXTRA_S = 5.0
_READ_BYTES = 4096


class CoordinatorAddress(NamedTuple):
    """The address of the coordinator.

    Attributes:
        agent_index: index of this agent; None: by order of arrival.
        num_agents: the number that this agent expects.
        name: the user's host or address, and port.
        address: the host's address.
        connect_timeout_s: how long to try.
        gives_way: the listening process may belong to an earlier job. Once it stops listening, this
            agent ends with TRY_AGAIN.
        ends_with_stdin: the coordinator's process started this one: the end of stdin ends it, and
            the coordinator prints the job's report.
    """

    agent_index: int | None
    num_agents: int
    name: tuple[str, int]
    address: str
    secret: str
    connect_timeout_s: float
    gives_way: bool = False
    ends_with_stdin: bool = False

    def __repr__(self) -> str:
        """Leave out the secret."""
        return f"CoordinatorAddress(agent_index={self.agent_index}, name={self.name})"


class JoinedAgent:
    """An agent and its link to the coordinator; a service of the loop."""

    def __init__(
        self, loop: JobLoop, program: RankProgram, coordinator: CoordinatorAddress
    ) -> None:
        """Start to dial."""
        self._loop, self._program, self._coordinator = loop, program, coordinator
        self._target = coordinator.address, coordinator.name[1]
        self._began_s = time.monotonic()
        self._lines = WaitingLines(self._began_s)
        self._probe_at_s = self._began_s + _PROBE_EVERY_S if coordinator.gives_way else float("inf")
        self._has_begun = False
        self._lost_s = float("inf")  # when a disconnected coordinator counts as lost
        self._gone_s = self._give_up_s = float("inf")
        self._link = CoordinatorLink(
            loop, self._target, coordinator.secret, self._on_up, self._on_message, self._on_down
        )
        self._streams = JobOutput(loop)
        self.agent = Agent(loop, program, self._link.send, self._streams)
        for service in (self._link, self.agent, self):
            loop.add(service)

    def stop(self, why: str, exit_code: int) -> None:
        """Stop the whole job for a signal of this process; after the job's end, stop printing."""
        if self.agent.exit_code is not None:
            self._give_up_s = time.monotonic()
            return
        self._give_up_s = time.monotonic() + self._program.stop_s + PRINT_S
        if self._link.wire.is_up and self._has_begun:
            self._link.send("stop", [f"{why} on {self._me}", exit_code])
            self._gone_s = time.monotonic() + self._program.stop_s + _STOP_EXTRA_S
        else:
            self._streams.say(f"hccl-launch: {why}")
            self.agent.end(exit_code, "")

    def on_stdin(self) -> None:
        """End at the end of stdin."""
        if not os.read(0, _READ_BYTES):
            self._loop.selector.unregister(0)
            self.agent.end(LOST_NODE, "")
            self._give_up_s = time.monotonic()

    def close(self) -> None:
        """End the connection."""
        self._streams.close()
        self._link.close()

    def next_s(self) -> float:
        """See `loop.Service`."""
        if self.agent.exit_code is not None:
            return 0.0 if self._streams.is_drained else self._give_up_s
        if self._has_begun:
            return min(self._gone_s, self._lost_s, self._probe_at_s)
        if self._coordinator.gives_way:
            return min(self._probe_at_s, self._lines.next_s, self._until_s)
        if self._coordinator.ends_with_stdin:
            return self._until_s
        return min(self._lines.next_s, self._until_s)

    def turn(self) -> None:
        """See `loop.Service`."""
        now_s = time.monotonic()
        if self._streams.is_lost and self._give_up_s == float("inf"):
            self.stop(*stopped_by(signal.SIGPIPE))
        if self.agent.exit_code is not None:
            if now_s >= self._give_up_s:
                self._streams.give_up()
            if self._streams.is_drained:
                self._loop.stop()
        elif now_s >= self._gone_s:
            self.agent.end(LOST_NODE, "")
        elif now_s >= self._lost_s:
            self._lose_coordinator()
        elif now_s >= self._probe_at_s:
            self._probe_at_s = now_s + (_SHORT_PROBE_EVERY_S if self._has_begun else _PROBE_EVERY_S)
            if not self._has_begun and not self._link.wire.is_up and self._is_refused(_PROBE_S):
                self.agent.end(TRY_AGAIN, "")
            elif self._has_begun and self._is_refused(_SHORT_PROBE_S):
                self._lose_coordinator()  # no process listens there any more
        elif not self._has_begun and now_s >= self._until_s:
            limit_s = self._coordinator.connect_timeout_s
            self._give_up(f"error: {self._what_is_wrong()}, after {limit_s:.0f} s")
        elif self._has_begun or self._coordinator.ends_with_stdin:
            pass  # the coordinator reports what it waits for
        elif self._lines.is_due(now_s):
            left_s = self._until_s - now_s
            self._streams.say(
                f"hccl-launch: {self._me}: {self._what_is_wrong()}; "
                f"trying for {left_s:.0f} s more (--connect-timeout)"
            )

    @property
    def _me(self) -> str:
        host = socket.gethostname()
        return (
            host
            if self._coordinator.agent_index is None
            else f"node {self._coordinator.agent_index} ({host})"
        )

    @property
    def _until_s(self) -> float:
        # The coordinator, which started at another time, ends the wait of all.
        extra_s = 10.0 if self._link.wire.is_up else 0.0
        return self._began_s + self._coordinator.connect_timeout_s + extra_s

    def _what_is_wrong(self) -> str:
        where = describe_target(self._coordinator.name)
        if self._link.wire.is_up:
            return f"the coordinator at {where} waits for other nodes"
        if self._link.wire.was_rejected:
            return f"the process at {where} is not hccl-launch, or its HCCL_SECRET differs"
        try:
            socket.create_connection(self._target, _PROBE_S).close()
        except OSError as error:
            return f"no answer from node 0 at {where} ({error.strerror or error})"
        return f"node 0 at {where} accepts connections and sends nothing"

    def _is_refused(self, timeout_s: float) -> bool:
        try:
            socket.create_connection(self._target, timeout_s).close()
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
        return False

    def _on_up(self) -> None:
        if self._has_begun:
            self._lost_s = self._probe_at_s = float("inf")
        address = address_towards(self._target[0], None)
        hello = Hello(
            socket.gethostname(), os.getpid(), self._program.slots, address, free_port(address)
        )
        self._link.send_hello(
            {
                "index": self._coordinator.agent_index,
                "num_agents": self._coordinator.num_agents,
                "protocol": PROTOCOL,
                "hello": hello,
            }
        )

    def _on_message(self, kind: str, body: Any) -> None:
        if kind == "refused":
            code = LOST_NODE if self._has_begun else MISSING_NODE
            self._give_up(f"error: {self._me} was refused by node 0: {body}", code)
            return
        if not self._has_begun:
            self._has_begun, self._probe_at_s = True, float("inf")
        if kind == "end":
            exit_code, line = body
            if line and not self._coordinator.ends_with_stdin:
                self._streams.say(
                    f"{line} (node 0 at {describe_target(self._coordinator.name)} has the report)"
                )
        self.agent.receive(kind, body)

    def _on_down(self) -> None:
        """Probe whether the coordinator is alive, while the link redials."""
        if self._has_begun and self.agent.exit_code is None:
            self._probe_at_s = time.monotonic()
            self._lost_s = self._probe_at_s + RETURN_S

    def _lose_coordinator(self) -> None:
        where = describe_target(self._coordinator.name)
        why = "its hccl-launch ended, or cannot be reached any more"
        self._give_up(f"error: lost node 0 at {where}: {why}", LOST_NODE)

    def _give_up(self, why: str, exit_code: int = MISSING_NODE) -> None:
        self._streams.say(f"hccl-launch: {why}")
        self.agent.end(exit_code, "")


def run(program: RankProgram, coordinator: CoordinatorAddress) -> int:
    """Run this host's part of a job to its end, and return the job's exit code."""
    loop = JobLoop()
    joined = JoinedAgent(loop, program, coordinator)
    watch_signals(loop, joined.stop, joined.agent.warn_ranks)
    if coordinator.ends_with_stdin:
        loop.watch(0, joined.on_stdin)
    loop.run()
    joined.close()
    code = joined.agent.exit_code
    return AGENT_KILLED if code is None else code
