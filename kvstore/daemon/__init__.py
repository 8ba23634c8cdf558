"""The store daemon: the process around the store's core. Shells, sockets, REST."""
