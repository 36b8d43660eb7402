"""Agents on other hosts that this process starts over ssh: their lines, and their ends."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hccl_py.launcher.exit_codes import MISSING_NODE
from hccl_py.launcher.hosts.errors import HostsError
from hccl_py.launcher.hosts.host_list import Host
from hccl_py.launcher.hosts.remote_agent import RemoteAgent, RemoteSettings
from hccl_py.launcher.job.head.head import Phase
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.serve import JobServer
from hccl_py.launcher.output.lines import LineReader


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
        try:
            for part in parts:
                self._agents.append(_SshAgent(loop, server, part, settings))
        except HostsError as error:
            server.head.stop(f"error: {error}", MISSING_NODE, time.monotonic())

    def __enter__(self) -> "SshAgents":
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            agent.close()


class _SshAgent:
    def __init__(
        self, loop: JobLoop, server: JobServer, part: RemotePart, settings: RemoteSettings
    ) -> None:
        self._loop, self._server, self._index = loop, server, part.index
        self._remote = RemoteAgent(part.host, settings, part.message)
        loop.spared.add(self._remote.pid)
        out = server.streams.out
        # It has its prefixes already.
        reader = LineReader(os.dup(self._remote.stdout), lambda lines: out.write(b"".join(lines)))
        server.streams.read(reader)
        self._begun = b""  # a line of its stderr without an end
        loop.watch(self._remote.stderr, self._on_stderr)

    def close(self) -> None:
        self._remote.close()

    def _on_stderr(self) -> None:
        data = self._remote.read_stderr()
        if data:
            whole, end, self._begun = (self._begun + data).rpartition(b"\n")
            self._server.streams.err.write(whole + end)
        elif data is None:
            self._loop.selector.unregister(self._remote.stderr)
            self._server.streams.err.write(self._begun + b"\n" * bool(self._begun))
            self._on_end()

    def _on_end(self) -> None:
        now_s, head = time.monotonic(), self._server.head
        failure = self._remote.failure()
        if failure is None and head.phase is Phase.GATHERING:
            code = self._remote.poll()
            failure = f"{self._remote.host.name}: its agent ended with exit code {code}"
        if failure is None:
            return
        if head.phase is Phase.GATHERING:
            head.stop(f"error: {failure}", MISSING_NODE, now_s)
        else:
            head.lose(self._index, failure, now_s)
