"""`import hccl_py` shows the public names, and loads nothing before one is used."""

import subprocess
import sys
from importlib import metadata

from quiet_clock import HANG_S

import hccl_py


def test_dir_lists_the_public_names_and_no_import_of_its_own() -> None:
    shown = {name for name in dir(hccl_py) if not name.startswith("_")}
    assert shown == set(hccl_py.__all__) - {"__version__"}
    assert {"Communicator", "ReduceOp", "PeerLostError", "register"} <= shown


def test_every_public_name_resolves() -> None:
    assert all(getattr(hccl_py, name) is not None for name in hccl_py.__all__)


def test_version_is_that_of_the_installed_package() -> None:
    assert hccl_py.__version__ == metadata.version("hccl-py")


def test_import_and_dir_load_neither_numpy_nor_torch() -> None:
    script = "import sys, hccl_py; dir(hccl_py); print({'numpy', 'torch'} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S
    )
    assert ran.stdout == "set()\n", ran.stderr
