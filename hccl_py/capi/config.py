"""The command `hccl-config`: flags that compile and link a program in C or C++ with libhccl."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from hccl_py.command_line import Parser
from hccl_py.installation import PACKAGE, version_of
from hccl_py.transport import _core

_DESCRIPTION = """
Print the flags for a program that includes hccl.h, as in
cc program.c $(hccl-config --cflags --libs)
"""


def folder() -> Path:
    """Return the folder that has include/ and lib/."""
    # Beside the compiled module: an editable installation leaves the sources elsewhere.
    return Path(_core.__file__).parents[1] / "capi"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = Parser(prog="hccl-config", description=_DESCRIPTION)
    parser.add_argument("--cflags", action="store_true", help="where the headers are")
    parser.add_argument("--libs", action="store_true", help="libhccl, found at run time too")
    parser.add_argument("--synapse", action="store_true", help="also libSynapse, for --libs")
    parser.add_argument("--cmake-dir", action="store_true", help="the value of hccl_DIR for CMake")
    parser.add_argument("--pkgconfig-dir", action="store_true", help="for PKG_CONFIG_PATH")
    parser.add_argument("--prefix", action="store_true", help="the folder of include/ and lib/")
    parser.add_argument("--version", action="version", version=version_of(PACKAGE))
    given = parser.read(argv)
    prefix = folder()
    include, lib = prefix / "include", prefix / "lib"
    words: list[str] = []
    if given.cflags:
        words += [f"-I{include}", f"-I{include / 'hccl'}"]
    if given.libs:
        names = ["-lSynapse"] * given.synapse + ["-lhccl"]
        words += [f"-L{lib}", *names, f"-Wl,-rpath,{lib}"]
    words += [str(lib / "cmake" / "hccl")] * given.cmake_dir
    words += [str(lib / "pkgconfig")] * given.pkgconfig_dir
    words += [str(prefix)] * given.prefix
    if not words:
        parser.error("expected at least one option")
    print(shlex.join(words))
    return 0
