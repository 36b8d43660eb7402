"""Prints the changes to this torch."""

from hccl_py.torch_backend.compat import AT_IMPORT, PATCHES

for patch in (*AT_IMPORT, *PATCHES):
    print(f"{patch.target}\n    {patch.reason}")
