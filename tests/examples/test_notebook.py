"""The notebook runs in a kernel of Jupyter, and an interrupt ends the ranks of a cell."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from quiet_clock import HANG_S

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "06_notebook.ipynb"
SLEEP = """
import hccl_py

def sleep():
    import os, time
    print("asleep", os.getpid(), flush=True)
    time.sleep(1000)

hccl_py.spawn(sleep, nproc=2)
"""


def test_notebook_runs_and_shows_prints_results_and_the_failed_rank() -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(book, kernel_name="python3", timeout=HANG_S).execute()
    first, second = (cell for cell in book.cells if cell.cell_type == "code")
    printed = "".join(one.text for one in first.outputs if one.output_type == "stream")
    assert sorted(line.split()[1:5] for line in printed.splitlines()) == [
        ["rank", str(rank), "of", "2:"] for rank in range(2)
    ]
    assert first.outputs[-1].output_type == "execute_result"
    shown = "".join(one.text for one in second.outputs)
    assert shown.startswith("ZeroDivisionError on rank 0\n")
    assert "# rank 0 of 2 divides by zero" in shown  # the line of the cell
    assert shown.count("Traceback") == 1


def test_interrupt_of_a_cell_ends_its_ranks() -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    asleep: list[int] = []

    def on_output(message: dict[str, Any]) -> None:
        for line in message["content"].get("text", "").splitlines():
            if "asleep" in line:
                asleep.append(int(line.split()[-1]))
                if len(asleep) == 2:
                    manager.interrupt_kernel()

    try:
        reply = client.execute_interactive(SLEEP, output_hook=on_output, timeout=HANG_S)
        assert reply["content"]["ename"] == "KeyboardInterrupt", json.dumps(reply, default=str)
        end_s = time.monotonic() + HANG_S
        while any(Path(f"/proc/{pid}").exists() for pid in asleep) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in asleep)
        again = client.execute_interactive("1 + 1", output_hook=on_output, timeout=HANG_S)
        assert again["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
