"""Agents on other hosts, started over ssh: their output and their ends."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hccl_py.launcher.exit_codes import MISSING_NODE, UsageError
from hccl_py.launcher.hosts.options import HostOptions
from hccl_py.launcher.hosts.remote_agent import RemoteAgent
from hccl_py.launcher.job.coordinator.coordinator import Phase
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.serve import JobServer
from hccl_py.launcher.output.lines import MAX_LINE_BYTES, LineReader
from hccl_py.launcher.output.screen import Console

_SILENT_S, _PERIOD_S = 15.0, 1.0
# The pieces of a long line already have their rank's prefix and mark.
_MAX_LINE_BYTES = MAX_LINE_BYTES + (1 << 10)


class SshAgents:
    """All agents over ssh. A context manager: leaving it ends their connections and processes."""

    def __init__(
        self,
        loop: JobLoop,
        server: JobServer,
        messages: Mapping[int, Mapping[str, Any]],
        options: HostOptions,
    ) -> None:
        """Start all at the same time; returns before they connect. `messages` is by agent."""
        self._agents: dict[int, _SshAgent] = {}
        self._server = server
        server.has_started_agents = True
        loop.add(self)
        try:
            for index, message in messages.items():
                remote = RemoteAgent(options.hosts[index], options, message)
                loop.spared.add(remote.pid)
                has_prompts = index == 0 and message["has_user"]
                self._agents[index] = _SshAgent(server, index, remote, has_prompts)
        except UsageError as error:
            server.coordinator.stop(f"error: {error}", MISSING_NODE, time.monotonic())

    def __enter__(self) -> "SshAgents":
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents.values():
            agent.close()

    def next_s(self) -> float:
        """See `loop.Service`."""
        is_over = self._server.coordinator.phase is Phase.ENDED
        return time.monotonic() + _PERIOD_S if is_over else float("inf")

    def turn(self) -> None:
        """See `loop.Service`: after the job, wait for lines only while some arrive."""
        coordinator, streams = self._server.coordinator, self._server.streams
        now_s, is_over = time.monotonic(), coordinator.phase is Phase.ENDED
        for index, agent in self._agents.items():
            if not is_over or streams.is_full:
                agent.waited_since_s = now_s
            elif not agent.is_open:
                continue
            elif index not in coordinator.agents:
                agent.close()  # it started no rank
            elif now_s - max(agent.waited_since_s, agent.read_s) > _SILENT_S:
                streams.say(
                    f"hccl-launch: {agent.name} does not end its connection: its last lines may "
                    "be missing"
                )
                agent.close()


class _SshAgent:
    """One agent; its lines have their prefixes already."""

    def __init__(
        self, server: JobServer, index: int, remote: RemoteAgent, has_prompts: bool
    ) -> None:
        self._server, self._index, self._remote = server, index, remote
        self.name, self.waited_since_s = remote.host.name, 0.0
        self._is_closed = False
        out, err = server.streams.out, server.streams.err
        self._readers = [
            self._reader(remote.stdout, out, bytes, has_prompts),
            self._reader(remote.stderr, err, remote.agents_part, has_prompts),
        ]

    @property
    def is_open(self) -> bool:
        return any(reader.is_open for reader in self._readers)

    @property
    def read_s(self) -> float:
        """Time of the last received byte."""
        return max(reader.read_s for reader in self._readers)

    def close(self) -> None:
        self._is_closed = True
        self._remote.close()
        for reader in self._readers:
            self._server.streams.forget(reader)
            reader.close()

    def _reader(
        self,
        descriptor: int,
        screen: Console,
        part: Callable[[bytes], bytes],
        has_prompts: bool,
    ) -> LineReader:
        def take(lines: Sequence[bytes]) -> None:
            screen.write(b"".join(lines), self)

        reader = LineReader(descriptor, take, self._keep, part, _MAX_LINE_BYTES)
        self._server.streams.read(reader)
        if has_prompts:
            self._server.streams.show_prompts(reader, screen, b"", self)
        return reader

    def _keep(self, data: bytes) -> None:
        # ssh may still write to the other stream, and would not end before.
        if not (data or self.is_open or self._is_closed):
            self._note_end()

    def _note_end(self) -> None:
        now_s, coordinator = time.monotonic(), self._server.coordinator
        failure = self._remote.failure()
        is_early = coordinator.phase is Phase.GATHERING
        if failure is None and is_early:
            failure = f"{self.name}: its agent ended with exit code {self._remote.poll()}"
        if failure is not None and is_early:
            coordinator.stop(f"error: {failure}", MISSING_NODE, now_s)
        elif failure is not None:
            coordinator.lose(self._index, failure, now_s)
