"""The size of a proof: a small part of it in every build, or as much as its caller wants."""

from __future__ import annotations

import logging
import os

TIMES = float(os.environ.get("FAIRQUE_PROOF", "1"))
"""Each proof's size, as a multiple of its size in a build."""
SEED = int(os.environ.get("FAIRQUE_PROOF_SEED", "1"))
"""Where the drawn histories begin; another number is another proof."""

logger = logging.getLogger("proof")
"""Says how much was proven: `--log-cli-level=info` shows it."""


def times(number: int) -> int:
    """``number``, as many times as was asked for."""
    return max(1, int(number * TIMES))
