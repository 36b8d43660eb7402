"""Agents on other hosts that this process starts over ssh: their lines, and their ends."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hccl_py.launcher.exit_codes import MISSING_NODE
from hccl_py.launcher.hosts.host_list import Host
from hccl_py.launcher.hosts.remote_agent import RemoteAgent, RemoteSettings
from hccl_py.launcher.job.coordinator.coordinator import Phase
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.serve import JobServer
from hccl_py.launcher.output.screen import Screen
from hccl_py.launcher.usage_error import UsageError

_SILENT_S, _LOOK_S = 15.0, 1.0


@dataclass(frozen=True)
class RemotePart:
    """The part of a host: its number, and what its agent is told."""

    index: int
    host: Host
    message: Mapping[str, object]


class SshAgents:
    """All of them. A context manager: leaving it ends the connections and what runs there."""

    def __init__(
        self,
        loop: JobLoop,
        server: JobServer,
        parts: Sequence[RemotePart],
        settings: RemoteSettings,
    ) -> None:
        """Start all at once; none has connected when this returns."""
        self._agents: list[_SshAgent] = []
        self._server = server
        server.has_started_agents = True
        loop.add(self)
        try:
            for part in parts:
                self._agents.append(_SshAgent(loop, server, part, settings))
        except UsageError as error:
            server.coordinator.stop(f"error: {error}", MISSING_NODE, time.monotonic())

    def __enter__(self) -> "SshAgents":
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            agent.close()

    def next_s(self) -> float:
        """See `loop.Service`."""
        is_over = self._server.coordinator.phase is Phase.ENDED
        return time.monotonic() + _LOOK_S if is_over else float("inf")

    def turn(self) -> None:
        """See `loop.Service`: after the job, wait for lines no longer than some come."""
        now_s, coordinator, streams = (
            time.monotonic(),
            self._server.coordinator,
            self._server.streams,
        )
        for agent in self._agents:
            if coordinator.phase is not Phase.ENDED or streams.is_full:
                agent.received_s = now_s
            if coordinator.phase is not Phase.ENDED or not agent.is_open:
                continue
            if agent.index not in coordinator.agents:
                agent.close()  # it started no rank
            elif now_s - agent.received_s > _SILENT_S:
                streams.say(
                    f"hccl-launch: {agent.name} does not end its connection: its last lines may "
                    "be missing"
                )
                agent.close()


class _AgentStream:
    """Whole lines of an agent, which have their prefixes already."""

    def __init__(
        self,
        descriptor: int,
        read: Callable[[], bytes | None],
        screen: Screen,
        agent: "_SshAgent",
    ) -> None:
        self._descriptor, self._read = descriptor, read
        self._screen, self._agent = screen, agent
        self.prompt = b""  # a line without an end
        self.read_s = 0.0
        self.is_open = True

    def fileno(self) -> int:
        return self._descriptor

    def on_readable(self) -> None:
        data = self._read()
        self.read_s = self._agent.received_s = time.monotonic()
        if data is not None:
            whole, end, self.prompt = (self.prompt + data).rpartition(b"\n")
            if whole or end:
                self._screen.write(whole + end, self)
            return
        if self.prompt:
            self._screen.write(self.prompt + b"\n", self)
        self.is_open = False
        self._agent.on_end_of_stream()

    def take_unfinished(self) -> bytes:
        text, self.prompt = self.prompt, b""
        return text


class _SshAgent:
    def __init__(
        self, loop: JobLoop, server: JobServer, part: RemotePart, settings: RemoteSettings
    ) -> None:
        self._server, self.index = server, part.index
        self._remote = RemoteAgent(part.host, settings, part.message)
        loop.spared.add(self._remote.pid)
        self.name, self.received_s = part.host.name, 0.0
        streams = server.streams
        self._out = _AgentStream(self._remote.stdout, self._remote.read_stdout, streams.out, self)
        self._err = _AgentStream(self._remote.stderr, self._remote.read_stderr, streams.err, self)
        for stream, screen in ((self._out, streams.out), (self._err, streams.err)):
            streams.read(stream)
            if part.index == 0 and part.message["has_user"]:
                streams.show_prompts(stream, screen, b"", stream)

    @property
    def is_open(self) -> bool:
        return self._out.is_open or self._err.is_open

    def close(self) -> None:
        for stream in (self._out, self._err):
            self._server.streams.forget(stream)
            stream.is_open = False
        self._remote.close()

    def on_end_of_stream(self) -> None:
        # ssh may have more to write to the other one, and would not end before.
        if not self.is_open:
            self._on_end()

    def _on_end(self) -> None:
        now_s, coordinator = time.monotonic(), self._server.coordinator
        failure = self._remote.failure()
        if failure is None and coordinator.phase is Phase.GATHERING:
            code = self._remote.poll()
            failure = f"{self._remote.host.name}: its agent ended with exit code {code}"
        if failure is None:
            return
        if coordinator.phase is Phase.GATHERING:
            coordinator.stop(f"error: {failure}", MISSING_NODE, now_s)
        else:
            coordinator.lose(self.index, failure, now_s)
