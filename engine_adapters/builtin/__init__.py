"""The built-in prefill and decode engine: plain torch, paged KV, iteration-level batching."""
