"""One module a contestant of `moontide bench store`: what runs in its process.

A peer's runs in an interpreter that has the peer's packages and not ours, so everything here but
`ours` and `limits` imports only the standard library and, by name, what it measures."""
