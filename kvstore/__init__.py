"""The store: keys, layout, tiers, wire messages, events, the daemon and its Python client."""
