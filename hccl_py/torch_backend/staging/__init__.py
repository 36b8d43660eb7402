"""Calls on tensors of an accelerator, staged through pinned host memory."""
