"""Transports by name: the interface of a provider, the registry, and one folder for each."""
