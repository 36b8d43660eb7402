"""One registry of what happens at exit and at fork, and the order of its stages."""

import subprocess
import sys
from pathlib import Path

import pytest

import hccl_py.communicator  # noqa: F401  # registers its steps
from hccl_py.transport.process_lifecycle import LifecycleStage, exit_steps, forked_child_steps

ROOT = Path(__file__).parents[2]


def test_exit_steps_end_users_of_a_thing_before_the_thing() -> None:
    stages = [stage for stage, _ in exit_steps]
    assert stages == sorted(stages)
    assert stages.index(LifecycleStage.EXCEPTION) < stages.index(LifecycleStage.COMMUNICATORS)
    assert stages.index(LifecycleStage.COMMUNICATORS) < stages.index(LifecycleStage.PROGRESS_THREAD)


def test_forked_child_starts_with_the_lowest_layer() -> None:
    stages = [stage for stage, _ in forked_child_steps]
    assert stages == sorted(stages, reverse=True)
    assert stages.index(LifecycleStage.CONTROL_PLANE) < stages.index(LifecycleStage.COMMUNICATORS)


def test_no_other_module_registers_for_exit_or_fork() -> None:
    files = [path for top in ("hccl_py", "transport") for path in (ROOT / top).rglob("*.py")]
    users = {
        path.name
        for path in files
        if "atexit.register(" in path.read_text() or "register_at_fork(" in path.read_text()
    }
    assert users == {"process_lifecycle.py"}


def test_step_that_raises_does_not_stop_the_others() -> None:
    script = (
        "from hccl_py.transport.process_lifecycle import LifecycleStage, register\n"
        "register(LifecycleStage.COMMUNICATORS, at_exit=lambda: print('second'))\n"
        "register(LifecycleStage.PROCESS_GROUPS, at_exit=lambda: 1 / 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "second\n"
    assert "ZeroDivisionError" in done.stderr


SCRIPTS = {
    "communicators that nobody closes": """
import hccl_py
from hccl_py import Communicator
id, made = hccl_py.get_unique_id(), []
def rank(number):
    made.append(Communicator(id, number, 2))
ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
for one in ranks:
    one.start()
for one in ranks:
    one.join()
assert len(made) == 2
""",
    # The control thread may lose its core at any line; here it does before it lets go.
    "a store that ends at exit": """
import hccl_py
from hccl_py.transport.bootstrap import unique_id_store
release = unique_id_store.release
def release_late(plane):
    time.sleep(0.3)
    release(plane)
unique_id_store.release = release_late
id = hccl_py.get_unique_id()
""",
    "a thread that listens to SIGUSR2": """
read = os.eventfd_read
def read_late(descriptor):
    value = read(descriptor)
    if threading.current_thread().name == "hccl-flight-recorder":
        time.sleep(0.3)
    return value
os.eventfd_read = read_late
from hccl_py.observe.dump_signal import BELL
BELL.acquire(lambda: None)
BELL.release()
""",
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_process_ends_without_a_thread_of_ours(what: str) -> None:
    """One that still ran while the interpreter ended would be killed inside of the engine."""
    script = "import atexit, os, threading, time\n"
    script += "atexit.register(lambda: print(*(one.name for one in threading.enumerate())))\n"
    done = subprocess.run(
        [sys.executable, "-c", script + SCRIPTS[what]], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("MainThread\n", "")
