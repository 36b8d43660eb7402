"""`hccl-perftest`: prints what ib_write_bw and ib_send_lat print, over any provider.

main     the command: server, client or both ends; start reading here
link     the control connection between the two ends
end      one end: queue pair, memory, the timed rounds
report   the table
"""
