"""What runs in contestants' processes, one module each.

A peer's runs in an interpreter that has the peer's packages and not ours, so everything here but
what measures ourselves and the machine imports only the standard library and, by name, what it
measures."""
