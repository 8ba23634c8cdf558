"""A client process for tests: `python child.py ADDRESS`. It puts, pins, stores half a prompt,
prints a line, and then holds everything until it is killed."""

from __future__ import annotations

import sys
import threading

from moontide.kvstore import Group, KVLayout, Namespace, connect

LAYOUT = KVLayout((Group("full", 4, 4, 8, "float16"),))


def main() -> None:
    client = connect(sys.argv[1])
    client.put("shared", bytes(200_000))
    client.put("small", b"x" * 100)
    view = client.view("shared")
    namespace = Namespace(weights_id="w", layout=LAYOUT, tokenizer_digest="t", block_tokens=16)
    kv = client.kv(namespace)
    kv.publish_hbm(kv.keys(range(64)))
    store = kv.begin_store(range(5000, 5100), deadline_s=60)
    job = kv.submit_store(store, 0, [bytes(kv.layer_bytes(0))] * 6, deadline_s=60)
    while all(result.job != job for result in kv.poll()):
        threading.Event().wait(0.001)
    kv.lookup(range(64), pin_s=1)
    print("ready", view is not None, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
