"""hccl-launch: starts the ranks of a job, on one machine or on many.

main.py      the command
launch.py    its steps: start reading here
command_line/  the command line, checked; options.py has the result for the other rooms
parts/       the part of the job that this process runs
supervisor.py  the process that the user starts: watches the agent, cleans up
job/         coordinator and agents of a job of fixed size; a Python rank starts with worker.py
elastic_job.py  jobs whose size may change, on torch.distributed.run; other files import torch only
             to count devices
hosts/       other hosts, over ssh; agent_main.py runs there
preflight/   finds problems before the ranks start
manifests/   the output of --print-sbatch and --print-k8s
placement/   the cores of each rank
output/      the lines of ranks
progress/    the status line, and ranks that hang
machine/     this machine: processes, open files, names
failure.py   failures of ranks, and the report
"""
