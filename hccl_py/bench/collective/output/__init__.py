"""What the results look like: table, CSV, JSON, plots, the live table."""
