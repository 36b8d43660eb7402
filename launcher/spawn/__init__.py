"""hccl_py.spawn: a function as the ranks of a job, without a launcher.

call      `spawn`, in the user's process; read first
pickler   cloudpickle with the file names of functions
job       hccl-launch in a process of its own, which ends with that one
rank      the program of each rank
"""
