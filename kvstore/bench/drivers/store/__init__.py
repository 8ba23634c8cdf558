"""The contestants of `moontide bench store`."""
