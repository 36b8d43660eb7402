"""What the user has to mend before a job can start on its hosts."""


class HostsError(ValueError):
    """The hosts cannot be used as asked; the message says why and what to do, in one line."""
