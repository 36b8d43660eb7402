"""The lab: predicts, draws and makes plans, and emulates networks. A wing: no job needs it.

plan_command   `hccl-plan`, the command
simulation     collectives in virtual time
synthesis      plans for an uneven network
interchange    plans of other programs, and for them
algorithms     finds an algorithm by its name
emulation      `hccl-launch --emulate`: nodes and links from a file, on this machine

Its C++ is `csrc/`, the extension module `_lab`. Without this folder everything else works.
"""
