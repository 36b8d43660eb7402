"""The arguments of torch's calls: converted, checked, and apart in memory."""
