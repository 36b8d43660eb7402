"""The wire: one handshake, one framing, and one way to treat connections that have proved nothing.

handshake.py   both ends prove that they know a secret, without sending it
acceptor.py    listens, runs handshakes, and keeps strangers few
frames.py      sealed messages over an authenticated connection
client.py      one connection to a server, dialled again when it breaks
server.py      the connections of many clients

Bootstrap, the launcher and preflight speak it. Agents of hccl-launch import `handshake`, `frames`
and `client`, so these import nothing that costs time.
"""
