"""The lab: predicts, draws, makes and tries plans without the machines. A wing: no job needs it.

plan_command   `hccl-plan`, the command
simulation     collectives in virtual time
synthesis      plans for an uneven network
algorithms     the algorithm that a text names
emulation      `hccl-launch --emulate`: nodes and links of a file, on this machine

Its C++ is `csrc/`, the extension module `_lab`. Without this folder everything else works.
"""
