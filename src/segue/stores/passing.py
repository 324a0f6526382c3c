"""What may be passed over while a part of a topic, queue or ring is read."""

import logging

from segue.values import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """What is read, and what is nobody's loss there."""

    name: str
    """Of the topic, queue or ring."""
    number: str
    """Of the partition or lane."""
    deleted: bool = False
    damaged: bool = False

    def warn(self, start: int, after: int, reason: str) -> None:
        """Say what was passed over."""
        logger.warning(
            "passed over name=%s number=%s from=%d to=%d reason=%s",
            self.name,
            self.number,
            start,
            after,
            reason,
        )
