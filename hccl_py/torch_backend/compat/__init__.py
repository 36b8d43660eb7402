"""All of hccl-py's changes to torch, one entry for each; no other file changes torch.

    python -m hccl_py.torch_backend.compat     # prints what is patched, and why

every_torch   needed by all versions
torch_2_13    needed before torch 2.14; the file goes with the support of torch 2.13
torch_2_14    needed since torch 2.14

A replacement's docstring says what fails without it. Its first argument is torch's function, which
it calls for other groups. `test_patches.py` calls torch's function (`__wrapped__`) and fails when
torch no longer needs the patch.

Code that imported such a function by name before the first hccl group was made still has torch's
function. The group's method of the same name does the same work.
"""

import threading

from hccl_py.torch_backend.compat import every_torch, torch_2_13, torch_2_14
from hccl_py.torch_backend.groups.backend import IS_SUPPORTED

AT_IMPORT = every_torch.AT_IMPORT
PATCHES = every_torch.PATCHES + (torch_2_14 if IS_SUPPORTED else torch_2_13).PATCHES
"""The changes to this torch."""

_lock = threading.Lock()
_applied = False


def apply_all() -> None:
    """Apply all changes that are not applied yet."""
    global _applied
    with _lock:
        if not _applied:
            for patch in PATCHES:
                patch.apply(patch.target, patch.function)
            _applied = True
