"""Moves bytes between memory segments: shared memory now, TCP, RDMA and files behind the same
names."""
