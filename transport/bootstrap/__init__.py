"""How the ranks of a communicator meet, authenticate and connect.

mesh.py            the entry: from a store to all connections
rendezvous.py      ranks exchange peer infos at a store
full_mesh.py       makes all connections: connector.py, connection.py, tls.py
reconnect.py       makes lanes when first needed, and replaces connections that break
unique_id_store.py the store for ranks that know nothing but a unique id
unique_id_client.py  asks it
"""
