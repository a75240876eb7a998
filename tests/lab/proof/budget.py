"""How much of a proof is done: a slice for every build, or as long as somebody wants."""

from __future__ import annotations

import logging
import os

TIMES = float(os.environ.get("FAIRQUE_PROOF", "1"))
"""Each proof's size, as a multiple of what a build does."""
SEED = int(os.environ.get("FAIRQUE_PROOF_SEED", "1"))
"""Where the drawn histories begin; another number is another proof."""

logger = logging.getLogger("proof")
"""Says how much was proven: `--log-cli-level=info` shows it."""


def times(number: int) -> int:
    """``number``, as many times as was asked for."""
    return max(1, int(number * TIMES))
