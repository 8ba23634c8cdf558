"""`moontide bench store --trace`: a recorded trace of requests against eviction policies alone, and
through a real daemon."""
