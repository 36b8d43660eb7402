"""The provider `zmq`: lanes over ZeroMQ, encrypted with CURVE."""
