"""hccl-launch: starts the ranks of a job, on torch.distributed.elastic.

Rendezvous, restarts, log files and error files are elastic's; what lives here is the command line
(`options`), the processes of one machine (`job`), what one node does (`agent`), how a rank's
script is run (`worker`), where rank 0 listens (`ports`) and what is said when a rank fails
(`failure`). Nothing here imports the data path. Read `main` first.
"""
