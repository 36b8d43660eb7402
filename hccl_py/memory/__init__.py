"""What an argument of a call is to the engine: an address, a count, an element type."""
