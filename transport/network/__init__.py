"""This host on the network: settings, identity, interfaces, listening sockets, rejected clients."""
