"""`moontide bench store`: the store beside what its users would take instead, and beside what the
machine can do at best, in one interleaved run."""
