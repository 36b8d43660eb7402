"""Plans as other programs write and read them: `hccl-plan export` and `hccl-plan import`.

msccl          MSCCL's XML, both ways
mscclpp        MSCCL++'s JSON, read; mscclpp_file: written
moves          plans from what the files of others move
schedule       messages and work of each rank, as GOAL (LogGOPSim, ATLAHS) or Chakra (ASTRA-sim)
"""
