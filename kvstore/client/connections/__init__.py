"""How a client reaches its daemon: `link` for blocking calls, `channel` for jobs on its own thread.
Below both: `dialer` connects, `connection` greets, `frames` reads, `attachment` keeps what is
mapped of the daemon's memory."""
