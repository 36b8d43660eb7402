"""Torch's process groups and backends: their classes, settings, members, beginning and end.

identity       a group's settings, other groups and end
process_group  torch's ProcessGroup: a group of hccl alone
backend        torch's Backend: hccl as a part of a group, from torch 2.14 on
reconfigure    a group whose members change
lifecycle      makes and ends the groups of a process
replace_gloo   HCCL_REPLACE=gloo: hccl in the place of gloo, under its name
"""
