"""A client process that a test moves and kills. `python puppet.py ADDRESS` does what lines of JSON
on its standard input say, and answers each with one line."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

from moontide.kvstore import BlockStore, Group, KVLayout, Namespace, StoreClient, View, connect

LAYOUT = KVLayout((Group("full", 3, 2, 8, "float16"),))
NAMESPACE = Namespace(weights_id="model", layout=LAYOUT, tokenizer_digest="t", block_tokens=16)
ANSWER_SECONDS = 30.0


class Puppet:
    """The process, seen from the test."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, act: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"act": act, **arguments}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def call(self, act: str, **arguments: Any) -> Any:
        self.tell(act, **arguments)
        return self.hear()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=ANSWER_SECONDS)


class Strings:
    """What the process does when told to."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._views: list[View | None] = []
        self._kv: BlockStore | None = None

    def put(self, key: str, value: str, if_exists: Any) -> str:
        return self._client.put(key, base64.b64decode(value), if_exists=if_exists).status.name

    def get(self, key: str) -> str | None:
        value = self._client.get(key)
        return None if value is None else base64.b64encode(value).decode()

    def hold(self, key: str) -> bool:
        """Keeps a view for good."""
        self._views.append(self._client.view(key))
        return self._views[-1] is not None

    def half(self, tokens: list[int]) -> int:
        """Begins to store a prompt, and never ends."""
        self._kv = self._kv or self._client.kv(NAMESPACE)
        store = self._kv.begin_store(tokens, deadline_s=60)
        layer = [bytes(self._kv.layer_bytes(0))] * store.num_blocks
        job = self._kv.submit_store(store, 0, layer, deadline_s=60)
        while all(result.job not in (job, store.job) for result in self._kv.poll()):
            pass
        return store.num_blocks


def main() -> None:
    strings = Strings(connect(sys.argv[1], timeout_s=ANSWER_SECONDS))
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(strings, order.pop("act"))(**order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
