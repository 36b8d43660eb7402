"""This machine: its processes, limit of open files, folder for records, and resolver."""
