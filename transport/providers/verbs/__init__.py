"""RDMA devices: their list, the choice of one, and the queue pairs of a communicator."""
