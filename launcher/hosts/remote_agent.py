"""An agent on another host, started over ssh; it ends with its connection.

The agent reads its settings from stdin, which stays open: the end of stdin is the end of the job.
So no process stays on the host when ssh, sshd or this process is killed. Agent and coordinator
detect a silent network by their own connection. ssh detects it later: after a cut, TCP may wait for
half a minute before it retries. sshd waits for ever.
"""

import fcntl
import json
import math
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts import remote_shell
from hccl_py.launcher.hosts.host_list import Host
from hccl_py.launcher.hosts.options import HostOptions

_ALIVE_INTERVAL_S, _ALIVE_COUNT = 5, 7
_END_S = 5.0  # from the end of its stderr to the end of ssh
_TAIL_BYTES = 4096
_SSH_FAILED = 255
_REMEDIES = {
    "Host key verification failed": "run `{ssh}` once by hand and check its key",
    "Permission denied": "install a key there (ssh-copy-id) and load it here (ssh-add)",
    "Connection refused": "start sshd there, or name its port (--ssh-port)",
    "timed out|No route to host|unreachable": "check that the host is up and lets ssh in",
    "Could not resolve": "correct the name, or add it to ~/.ssh/config",
}


class RemoteAgent:
    """The agent of one host. A context manager: leaving it ends the agent.

    Attributes:
        host: the agent's host.
        stdout: descriptor of its output, owned by the caller.
        stderr: the same, for `agents_part`.
    """

    def __init__(
        self,
        host: Host,
        options: HostOptions,
        message: Mapping[str, object],
        module: str = "hccl_py.launcher.agent_main",
    ) -> None:
        """Start the agent; return before ssh has connected.

        Args:
            host: the agent's host.
            options: the same for all hosts.
            message: a dict for the agent, sent as a line of JSON with "environment" and "directory"
                of the options. It may contain secrets.
            module: module for `python -m`.

        Raises:
            UsageError: ssh cannot be started, or the environment is too large.
        """
        self.host, self._options = host, options
        self._unseen, self._tail, self._has_begun = b"", b"", False
        self._ssh_words = options.ssh.words(host)
        environment = dict(options.environment)
        sent = {**message, "environment": environment, "directory": options.directory}
        line = remote_shell.script(options.directory, options.python, module, environment)
        reader, self._stdin = _filled_pipe(os.fsencode(f"{line}\n{json.dumps(sent)}\n"))
        try:
            self._process = self._start(reader)
        except OSError as error:
            os.close(self._stdin)
            raise UsageError(f"cannot start ssh: {error.strerror}") from error
        finally:
            os.close(reader)
        pipes = []
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            with pipe:
                pipes.append(os.dup(pipe.fileno()))
        self.stdout, self.stderr = pipes

    def __enter__(self) -> "RemoteAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of ssh."""
        return self._process.pid

    def agents_part(self, data: bytes) -> bytes:
        """Return the agent's part of received stderr.

        Output of ssh and the shell before the agent begins is kept for `failure`.
        """
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self._has_begun:
            return data
        _, mark, rest = (self._unseen + data).partition(remote_shell.BEGINS)
        self._has_begun = bool(mark)
        self._unseen = (self._unseen + data)[-len(remote_shell.BEGINS) :]
        return rest

    def poll(self) -> int | None:
        """Return the exit code, -N after signal N, or None while ssh runs."""
        return self._process.poll()

    def failure(self) -> str | None:
        """Return in one line why there is no agent, or no connection to it any more.

        Call it after the end of ssh and of stderr. None: the agent ended by itself.
        """
        code = self._process.wait(_END_S)
        name, last = self.host.name, self._last_line()
        if code < 0:
            return f"{name}: ssh was ended by {signal.Signals(-code).name}"
        if self._has_begun:
            return f"{name}: the ssh connection broke: {last}" if code == _SSH_FAILED else None
        if code == _SSH_FAILED:
            ssh = shlex.join(["ssh", *self._ssh_words, name])
            remedies = (text for sign, text in _REMEDIES.items() if re.search(sign, last))
            remedy = next(remedies, "try `{ssh}` by hand").format(ssh=ssh)
            return f"{name}: ssh failed: {last}; {remedy}"
        lack = remote_shell.explain(code, last, self._options.directory, self._options.python)
        return f"{name}: {lack or f'its shell ended with exit code {code}: {last}'}"

    def hang_up(self) -> None:
        """Close the agent's stdin, which ends it and all its processes."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def close(self) -> None:
        """Kill ssh, which ends the connection and the agent, and release all descriptors."""
        self.hang_up()
        self._process.kill()
        with self._process:
            pass

    def _start(self, stdin: int) -> subprocess.Popen[bytes]:
        alive = [f"ServerAliveInterval={_ALIVE_INTERVAL_S}", f"ServerAliveCountMax={_ALIVE_COUNT}"]
        options = [
            *("BatchMode=yes", f"ConnectTimeout={math.ceil(self._options.ssh.connect_timeout_s)}"),
            # ssh prints why it ends. A shared connection would outlive its first user.
            *(*alive, "LogLevel=INFO", "ControlMaster=no"),
            *("ClearAllForwardings=yes", "ForwardX11=no"),
        ]
        # ssh takes the first value of an option, so the user's come first.
        words = [*self._ssh_words, *(word for option in options for word in ("-o", option))]
        return subprocess.Popen(
            ["ssh", "-T", *words, "--", self.host.name, remote_shell.COMMAND],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # The launcher handles the terminal's Ctrl-C: it ends ranks before connections.
            start_new_session=True,
        )

    def _last_line(self) -> str:
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no message")


def _filled_pipe(content: bytes) -> tuple[int, int]:
    """Return both ends of a pipe that contains the data, so that no write waits for ssh."""
    reader, writer = os.pipe()
    with suppress(PermissionError):  # above the limit of this user: the check below reports it
        if fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) < len(content):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, len(content))
    most = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    if most < len(content):
        os.close(reader)
        os.close(writer)
        raise UsageError(
            f"the environment for another host has {len(content)} bytes, the kernel permits {most} "
            "(/proc/sys/fs/pipe-max-size); pass fewer variables (-x, --env-file)"
        )
    os.write(writer, content)
    return reader, writer
