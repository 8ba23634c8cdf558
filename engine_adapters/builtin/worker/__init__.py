"""The worker process: the built-in engine behind HTTP."""
