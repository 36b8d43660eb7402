"""The network of `hccl-launch --emulate`: a process of its own.

cluster      the file: nodes, links, faults; the launcher reads it too
server       serves the ranks: takes their connections, steps and calls, and makes the faults
faults       what happens at which step
record       what the ranks reported: times of steps, and of calls
steps        what the network cost per step
forecast     the recorded calls, simulated on more nodes
report       the lines at the end
__main__     the process
network      a rank's way to it        rank    what a rank loads, and reports
launch       the launcher's part

The wires themselves are C++: `csrc/emulation/`.
"""
