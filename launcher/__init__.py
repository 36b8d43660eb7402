"""hccl-launch: starts the ranks of a job, on one machine or on many.

main.py      the command
launch.py    what it does: start reading here
command_line/  what it may say, checked; options.py is what the other rooms get of it
parts/       which part of the job this process is
supervisor.py  the process that the user sees: watches the agent, cleans up (processes.py)
job/         coordinator and agents of a job of fixed size; a Python rank begins with worker.py
elastic_job.py  jobs whose size may change, on torch.distributed.run; all else imports torch only to
             count devices
hosts/       other hosts, over ssh; agent_main.py runs there
preflight/   what would fail, found before the ranks start
manifests/   what --print-sbatch and --print-k8s print
placement/   which cores a rank gets
output/      the lines of ranks
progress/    the status line, and ranks that hang
open_files.py  how many files it may open
failure.py   how a rank failed, and the report
"""
