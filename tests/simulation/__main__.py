"""`python -m tests.simulation FIRST [COUNT] [--seconds S] [--log LEVEL]`: runs seeds, and says of
each that went wrong what did, and how to see it again."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time

from .machine.world import import_all
from .run import SECONDS, Outcome, run_seed

PACKAGES = ("moontide.kvstore", "moontide.transfer")
HASH_SEED = "0"
"""Of Python: sets of strings have an order, too."""


def main(arguments: argparse.Namespace) -> int:
    import_all(*PACKAGES)
    gc.freeze()  # what each world leaves is collected by itself
    if arguments.log:
        logging.basicConfig(level=arguments.log, stream=sys.stdout)
    failed = 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        began = time.process_time()
        outcome = run_seed(seed, seconds=arguments.seconds)
        print(_line(outcome, time.process_time() - began), flush=True)
        if outcome.wrong:
            failed += 1
            print(_account(outcome, arguments.seconds), flush=True)
        elif arguments.log:
            print(dict(sorted(outcome.counts.items())))
    return 1 if failed else 0


def _line(outcome: Outcome, cpu_seconds: float) -> str:
    return (
        f"seed={outcome.seed} digest={outcome.digest} simulated={outcome.seconds:.1f}s "
        f"switches={outcome.switches} cpu={cpu_seconds:.2f}s wrong={len(outcome.wrong)}"
    )


def _account(outcome: Outcome, seconds: float) -> str:
    again = f"python -m tests.simulation {outcome.seed} --seconds {seconds:g} --log DEBUG"
    return "\n".join(
        (
            *(f"    {trouble}" for trouble in outcome.troubles),
            *outcome.wrong,
            f"again: PYTHONHASHSEED={HASH_SEED} {again}",
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of trouble, simulated")
    parser.add_argument("--log", default="", help="our log at this level, and what was called")
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main(parser.parse_args()))
