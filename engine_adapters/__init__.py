"""Engines on the pool: the built-in one, and thin adapters for others."""
