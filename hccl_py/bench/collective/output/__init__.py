"""The output of results: table, CSV, JSON, plots, the live table."""
