"""`--emulate`: nodes and links of a file, whose network a process beside the ranks plays."""
