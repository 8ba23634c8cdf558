"""The contestants of `moontide bench transfer`."""
