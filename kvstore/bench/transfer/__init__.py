"""`moontide bench transfer`: the TCP transport beside other transfer engines, raw sockets and
memcpy, in one interleaved run."""
