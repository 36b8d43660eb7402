"""A small virtual machine (QEMU, without hardware support) that has an RDMA device, rxe0.

    with Machine(folder, 1, "python3 -c ...") as machine:
        machine.wait(timeout_s=120)

rxe0 stands on eth0, 10.99.0.NUMBER/24. Two machines of `pair_of_machines` share one network, or
two: rxe1 stands on eth1, 10.100.0.NUMBER/24.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from guest_image import kernel_and_initramfs

# One processor: emulated ones that patch the kernel's code under each other crash now and then. Its
# clock counts instructions, 4 ns each, and the host's time only where it is idle: on a busy host
# no timeout passes in the guest because of it.
# Soft-RoCE cuts packets of 4096 bytes where the interface takes them whole.
_MTU = 4200
_APPEND = "console=ttyS0 panic=-1 quiet net.ifnames=0 no_timer_check mitigations=off"
_GUEST = """\
exec </dev/null >>/dev/console 2>&1
export PATH={path} HOME={home} SHARED={shared} PYTHONDONTWRITEBYTECODE=1
mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576 common {common}
ulimit -l unlimited
hostname vm{number}; echo "10.99.0.{number} vm{number}" >>/etc/hosts
[ -e /sys/class/net/eth0 ] || ip link set dummy0 name eth0
ip link set lo up
ip link set eth0 up mtu {mtu}
ip address add 10.99.0.{number}/24 dev eth0
rdma link add rxe0 type rxe netdev eth0
if [ -e /sys/class/net/eth1 ]; then
  ip link set eth1 up mtu {mtu}
  ip address add 10.100.0.{number}/24 dev eth1
  rdma link add rxe1 type rxe netdev eth1
fi
cd {folder}
timeout {limit_s} bash -c {command} >"$SHARED/output" 2>&1
echo $? >"$SHARED/code.new"; mv "$SHARED/code.new" "$SHARED/code"
"""
_LIMIT_S = 900
_MONITOR_TIMEOUT_S = 30


class Machine:
    """A guest that runs one command as root. A context manager; its end is the machine's."""

    def __init__(
        self, shared: Path, number: int, command: str, netdevs: Sequence[str] = ()
    ) -> None:
        """Boot; the guest can write in `shared`, which is $SHARED there, and beside it."""
        self.shared = shared
        self.number = number
        shared.mkdir(exist_ok=True)
        self._code = shared / "code"
        (shared / "guest").write_text(
            _GUEST.format(
                path=shlex.quote(os.environ["PATH"]),
                home=shlex.quote(os.environ.get("HOME", "/root")),
                shared=shlex.quote(str(shared)),
                common=shlex.quote(str(shared.parent)),
                folder=shlex.quote(os.getcwd()),
                command=shlex.quote(command),
                number=number,
                mtu=_MTU,
                limit_s=_LIMIT_S,
            )
        )
        self._process = subprocess.Popen(
            _qemu(shared, number, netdevs),
            stdin=subprocess.DEVNULL,
            stdout=(shared / "qemu").open("wb"),
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def is_running(self) -> bool:
        """Whether the command may still be running."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """What the command has printed so far."""
        path = self.shared / "output"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, timeout_s: float) -> str:
        """Wait for the command to succeed, and return its output."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self} is not done in {timeout_s:g} s:\n{self._said()}"
            ) from None
        code = self._code.read_text().strip() if self._code.exists() else "none: it broke down"
        assert code == "0", f"{self}: exit code {code}:\n{self._said()}"
        return self.output

    def set_link(self, *, is_up: bool) -> None:
        """Plug its network cable in, or pull it: what others send it is lost meanwhile."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(_MONITOR_TIMEOUT_S)
            monitor.connect(str(self.shared / "monitor"))
            monitor.sendall(f"set_link n0 {'on' if is_up else 'off'}\ninfo version\n".encode())
            said = b""
            # Its answer to the second command comes when the first is done.
            while said.count(b"(qemu)") < 3:
                said += monitor.recv(4096)

    def kill(self) -> None:
        """Take its power away. Idempotent."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def __str__(self) -> str:
        return f"virtual machine {self.number}"

    def _said(self) -> str:
        if output := self.output:
            return output[-6000:]
        logs = [self.shared / "qemu", self.shared / "console"]
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())


def pair_of_machines(folder: Path, command: str, num_networks: int = 1) -> tuple[Machine, Machine]:
    """Boot two machines on these networks; each runs the command with NUMBER, 1 or 2, set."""
    machines = []
    for number in (1, 2):
        netdevs = [
            f"dgram,local.type=unix,local.path={folder}/{number}-{network},"
            f"remote.type=unix,remote.path={folder}/{3 - number}-{network}"
            for network in range(num_networks)
        ]
        numbered = f"export NUMBER={number}; {command}"
        machines.append(Machine(folder / f"vm{number}", number, numbered, netdevs))
    one, other = machines
    return one, other


def _qemu(shared: Path, number: int, netdevs: Sequence[str]) -> list[str]:
    kernel, initramfs = kernel_and_initramfs()
    network = [] if netdevs else ["-nic", "none"]
    for index, netdev in enumerate(netdevs):
        card = f"virtio-net-pci,netdev=n{index},mac=52:54:00:99:0{index}:0{number},romfile="
        network += ["-netdev", f"{netdev},id=n{index}", "-device", card]
    root = "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
    return [
        *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg,thread=single"),
        *("-icount", "shift=2,sleep=on"),
        *("-cpu", "max", "-smp", "1", "-m", "1536M", "-nodefaults", "-display", "none"),
        *("-no-reboot", "-kernel", str(kernel), "-initrd", str(initramfs)),
        *("-append", f"{_APPEND} SHARED={shared}"),
        *("-monitor", f"unix:{shared}/monitor,server=on,wait=off"),
        *("-serial", f"file:{shared}/console", "-device", "virtio-rng-pci", *network),
        *("-virtfs", root),
        *("-virtfs", f"local,path={shared},mount_tag=shared,security_model=none"),
        *("-virtfs", f"local,path={shared.parent},mount_tag=common,security_model=none"),
    ]
