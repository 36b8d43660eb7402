"""Runs on each of two virtual machines, one rank on each: what ends a communicator over RDMA.

    NUMBER=1 python guest_faults.py

Machine 2 has the trouble, which the ranks of both must name in time. The last one is that it loses
its power, at the hand of the test that started it.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from guest_ranks import COUNTED, counters
from guest_store import FileStore

import hccl_py
from hccl_py import Communicator, PeerLostError
from hccl_py.transport.errors import BootstrapError, HcclError
from hccl_py.transport.providers.verbs.devices import ACTIVE, list_ports

SHARED = Path(os.environ["SHARED"])
SECRET = "of two virtual machines"
HAS_TROUBLE = os.environ["NUMBER"] == "2"
TIMEOUT_S = 60.0
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libibverbs.so.1")
SOON_S = 10.0
"""Far more than a queue pair needs to give up here, far less than a call's deadline."""


class Lines(logging.Handler):
    """Keeps the warnings of the transport."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("hccl_py.transport").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.lines.append(record.getMessage())

    def wait_for(self, text: str) -> str:
        """Return the only line that has this text."""
        until_s = time.monotonic() + TIMEOUT_S
        while not (found := [line for line in self.lines if text in line]):
            assert time.monotonic() < until_s, self.lines
            time.sleep(0.05)
        assert len(found) == 1, found
        return found[0]


def run(command: str) -> None:
    """Run a command of this machine."""
    subprocess.run(command, shell=True, check=True, timeout=TIMEOUT_S)


def communicator(name: str) -> Communicator:
    """Connect the two ranks."""
    folder = SHARED.parent / name
    folder.mkdir(exist_ok=True)
    return Communicator(FileStore(folder), int(HAS_TROUBLE), 2, timeout_s=TIMEOUT_S)


def say(what: str) -> None:
    """Tell the test."""
    (SHARED / what).touch()


def wait_until_there(file: Path) -> None:
    """Wait until a file is there."""
    until_s = time.monotonic() + TIMEOUT_S
    while not file.exists():
        assert time.monotonic() < until_s, file
        time.sleep(0.05)


def wait_for_port() -> None:
    """Wait until all ports of this machine are up."""
    until_s = time.monotonic() + TIMEOUT_S
    while any(port.state != ACTIVE for port in list_ports()):
        assert time.monotonic() < until_s, list_ports()
        time.sleep(0.05)


def both_say(what: str) -> None:
    """Wait until the other machine has come as far; no network is needed."""
    store = FileStore(SHARED.parent)
    store.set(f"{what}-{HAS_TROUBLE}", b"")
    store.get(f"{what}-{not HAS_TROUBLE}")


def check_sum(comm: Communicator) -> None:
    """Compute a sum over RDMA, right."""
    data = np.full(50_000, comm.rank + 1.0)
    comm.all_reduce(data)
    assert (data == 3).all()


def call_until_lost(comm: Communicator) -> str:
    """Make calls until one fails, and the next ones with it; return what the error says."""
    began_s = time.monotonic()
    registered = hccl_py.empty(50_000, "float64")
    try:
        while time.monotonic() < began_s + TIMEOUT_S:
            comm.all_reduce(np.ones(50_000))
            comm.broadcast(registered, 0)
    except HcclError as error:
        took_s = time.monotonic() - began_s
        print(f"after {took_s:.1f} s: {type(error).__name__}: {error}", flush=True)
        assert isinstance(error, PeerLostError), error
        assert took_s < SOON_S, took_s
        try:
            comm.barrier()
        except PeerLostError as again:
            assert str(error) in str(again)
            return str(error)
        raise AssertionError("a call after the failure succeeded") from error
    raise AssertionError("nothing failed")


def bootstrap_error(name: str) -> str:
    """Return why the ranks cannot connect."""
    try:
        communicator(name).close()
    except BootstrapError as error:
        print(error, flush=True)
        return str(error)
    raise AssertionError("they connected")


def process_that_is_killed() -> None:
    """The other rank says that it died, at once: its control connection closes."""
    calls = SHARED / "calls"
    if not HAS_TROUBLE:
        with communicator("killed") as comm:
            check_sum(comm)
            print(call_until_lost(comm), flush=True)
        return
    child = os.fork()  # nothing of the library has begun yet
    if child == 0:
        comm = communicator("killed")
        check_sum(comm)
        calls.touch()
        call_until_lost(comm)
    wait_until_there(calls)
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def secret_that_differs() -> None:
    """No packet leaves a device: queue pairs connect after the ranks have proved themselves."""
    before = counters()
    if HAS_TROUBLE:
        os.environ["HCCL_SECRET"] = "of another job"
    bootstrap_error("secret")
    os.environ["HCCL_SECRET"] = SECRET
    grew = {name: counters()[name] - before[name] for name in COUNTED}
    assert not any(grew.values()), grew


def gid_of_another_network() -> None:
    """One rank has an IPv4 address, the other an IPv6 one."""
    if HAS_TROUBLE:
        os.environ["HCCL_IB_GID_INDEX"] = "0"
    assert "expected IPv4 on both or IPv6 on both" in bootstrap_error("gid_of_another_network")


def port_that_only_one_machine_has() -> None:
    """`auto` stays with TCP on both."""
    os.environ["HCCL_TRANSPORT"] = "auto"
    if HAS_TROUBLE:
        os.environ["HCCL_IB_HCA"] = "^rxe0"
    with communicator("one_port") as comm:
        check_sum(comm)
        devices = comm.statistics()["devices"]
        assert devices["tcp"]["messages"] > 0 == devices["verbs"]["messages"], devices
    os.environ["HCCL_TRANSPORT"] = "verbs"
    os.environ.pop("HCCL_IB_HCA", None)


def device_that_fails_on_one_machine() -> None:
    """`auto` stays with TCP on both where one has a device but may have no completion queue."""
    os.environ["HCCL_TRANSPORT"] = "auto"
    log, cgroup = Lines(), SHARED / "cgroup"
    if HAS_TROUBLE:
        cgroup.mkdir()
        run(f"mount -t cgroup2 none {cgroup} && echo +rdma > {cgroup}/cgroup.subtree_control")
        run(f"mkdir {cgroup}/few && echo rxe0 hca_object=1 > {cgroup}/few/rdma.max")
        run(f"echo {os.getpid()} > {cgroup}/few/cgroup.procs")
    with communicator("few_objects") as comm:
        check_sum(comm)
        devices = comm.statistics()["devices"]
        assert devices["tcp"]["messages"] > 0 == devices["verbs"]["messages"], devices
    if HAS_TROUBLE:
        run(f"echo {os.getpid()} > {cgroup}/cgroup.procs")
    else:
        line = log.wait_for("TCP instead of RDMA")
        print(line, flush=True)
        assert "rank 1 on vm2" in line and "rxe0" in line
    os.environ["HCCL_TRANSPORT"] = "verbs"


def link_that_goes_down_and_comes_back() -> None:
    """The communicator ends; a new one works as soon as the link does."""
    with communicator("link_down") as comm:
        check_sum(comm)
        say("pull_the_cable")
        said = call_until_lost(comm)
        assert "ibv_wc_status" in said
        # A link that comes back earlier tells the other rank that this one has left.
        both_say("lost")
    say("plug_it_in")
    wait_for_port()
    with communicator("link_up") as comm:
        check_sum(comm)


def library_that_is_missing() -> None:
    """The rank names the package, and with `auto` both use TCP."""
    moved = LIBRARY.with_name("moved")
    if HAS_TROUBLE:
        LIBRARY.rename(moved)
    program = [sys.executable, __file__, "library"]  # this process has loaded it before
    done = subprocess.run(program, capture_output=True, text=True, timeout=5 * TIMEOUT_S)
    print(done.stdout + done.stderr, flush=True)
    assert done.returncode == 0
    if HAS_TROUBLE:
        moved.rename(LIBRARY)


def in_new_process_without_library() -> None:
    """See above."""
    said = bootstrap_error("no_library")
    assert "apt install ibverbs-providers" in said or not HAS_TROUBLE
    os.environ["HCCL_TRANSPORT"] = "auto"
    with communicator("no_library_auto") as comm:
        check_sum(comm)
        devices = comm.statistics()["devices"]
        assert devices["tcp"]["messages"] > 0 == devices["verbs"]["messages"], devices


def device_that_is_removed() -> None:
    """The kernel waits until no process has it open; until then calls go on."""
    with communicator("device") as comm:
        check_sum(comm)
        if HAS_TROUBLE:
            removal = subprocess.Popen(["rdma", "link", "del", "rxe0"])
        for _ in range(20):
            check_sum(comm)
    if HAS_TROUBLE:
        assert removal.wait(TIMEOUT_S) == 0
    assert "this host has no RDMA device" in bootstrap_error("no_device")
    if HAS_TROUBLE:
        run("rdma link add rxe0 type rxe netdev eth0")
        wait_for_port()
    with communicator("new_device") as comm:
        check_sum(comm)


def machine_that_loses_its_power() -> None:
    """The other one says that it is unreachable."""
    with communicator("power") as comm:
        check_sum(comm)
        say("cut_the_power")
        assert "transport retry counter exceeded" in call_until_lost(comm)


TROUBLES: tuple[Callable[[], None], ...] = (
    process_that_is_killed,
    secret_that_differs,
    gid_of_another_network,
    port_that_only_one_machine_has,
    device_that_fails_on_one_machine,
    library_that_is_missing,
    link_that_goes_down_and_comes_back,
    device_that_is_removed,
    machine_that_loses_its_power,
)


def main() -> None:
    """Have one trouble after the other."""
    os.environ.update(
        HCCL_TRANSPORT="verbs",
        HCCL_SECRET=SECRET,
        HCCL_SOCKET_IFNAME="eth0",
        HCCL_IB_TIMEOUT="14",  # a silent peer is given up after half a second
    )
    troubles = (in_new_process_without_library,) if sys.argv[1:] == ["library"] else TROUBLES
    for trouble in troubles:
        print(f"== {trouble.__name__}", flush=True)
        trouble()
        os.environ.pop("HCCL_IB_GID_INDEX", None)


if __name__ == "__main__":
    main()
