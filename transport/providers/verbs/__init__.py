"""RDMA devices: which there are, which one a rank uses, and the queue pairs of a communicator."""
