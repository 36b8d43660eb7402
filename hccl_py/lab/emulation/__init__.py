"""The network of `hccl-launch --emulate`: a process of its own.

cluster      the file: nodes, links, faults; the launcher reads it too
server       the process: serves the ranks and makes the faults
record       times of steps and calls, as the ranks report them
steps        the network's time per step
report       the lines at the end, with the recorded calls simulated on more nodes
network      a rank's connection to the process      rank             the module that a rank loads
launch       the launcher's option                   launch_network   starts and watches the process

The emulated wires are C++: `csrc/emulation/`.
"""
