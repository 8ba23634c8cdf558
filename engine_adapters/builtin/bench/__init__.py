"""`moontide bench serve`: what the pool is worth at the HTTP client, and what it costs."""
