"""The network of `hccl-launch --emulate`: a process of its own.

cluster      the file: nodes, links, faults; the launcher reads it too
server       the process: takes the ranks' connections, steps and calls, and makes the faults
record       what the ranks reported: times of steps, and of calls
steps        what the network cost per step
report       the lines at the end, with the recorded calls simulated on more nodes
network      a rank's way to it        rank             what a rank loads, and reports
launch       the launcher's option     launch_network   starts and watches the process

The wires themselves are C++: `csrc/emulation/`.
"""
