"""This host on the network: identity of a rank, interfaces, listening sockets, rejected clients."""
