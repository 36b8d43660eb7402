"""The wire: one handshake, one framing, and limits on unauthenticated connections.

handshake.py   both ends prove that they know a secret, without sending it
acceptor.py    listens, runs handshakes, and limits unauthenticated connections
frames.py      sealed messages over an authenticated connection
client.py      one connection to a server, dialled again when it breaks
server.py      the connections of many clients

Bootstrap, the launcher and preflight use it. Agents of hccl-launch import `handshake`, `frames` and
`client`, so these import nothing slow.
"""
