"""The engine loop: pages, batching, the store, and the thread that runs them."""
