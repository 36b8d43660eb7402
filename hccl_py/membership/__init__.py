"""Which ranks belong to a communicator: how they meet, subset, split and shrink."""
