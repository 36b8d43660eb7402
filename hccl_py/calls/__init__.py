"""A call of a communicator, from its arguments to the engine.

collectives   the collectives as methods; read first
submit        gives a checked call to the engine, and raises its errors
plan_cache    chooses, writes and keeps the plans; C++ looks them up
call_group    several calls that begin together
window        one-sided puts and signals
work          the handle of a nonblocking call
recording     the calls of a block of `hccl_py.capture()`; graphs/ replays them
communicator_state  what all of these need of a communicator
"""
