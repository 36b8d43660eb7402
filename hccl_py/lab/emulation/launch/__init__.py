"""`hccl-launch --emulate`: a process beside the ranks plays the network of a file.

options   the option, checked against the others   network   starts and ends the process
watch     the launcher's eye on it
"""

from hccl_py.lab.emulation.launch.options import emulated as emulated
