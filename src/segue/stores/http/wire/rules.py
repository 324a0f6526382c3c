"""The rules of queues and topics, as they are sent.

Of the same rules a server's answer may hold more than a client knows, and what a client sends no
more than the server does: a misspelt field would set all the others back to what they are by
default, and nobody would be told.
"""

from dataclasses import asdict, fields
from typing import Self

from segue.delivery.retry import BASE_SECONDS_DEFAULT, CAP_SECONDS_DEFAULT, JITTER_DEFAULT
from segue.delivery.rules import (
    DEDUPLICATION_SECONDS_DEFAULT,
    DELIVERIES_MAX_DEFAULT,
    LEASE_SECONDS_DEFAULT,
    OnExpiry,
    OnFull,
    QueueRules,
)
from segue.delivery.topic_rules import TOMBSTONE_SECONDS_DEFAULT, TopicRules
from segue.stores.http.wire.base import Answer


class QueueRulesJson(Answer):
    """How a queue behaves. What is left out is as by default."""

    lease_ttl: float = LEASE_SECONDS_DEFAULT
    max_leases: int | None = None
    max_deliveries: int | None = DELIVERIES_MAX_DEFAULT
    backoff_base: float = BASE_SECONDS_DEFAULT
    backoff_cap: float = CAP_SECONDS_DEFAULT
    backoff_jitter: float = JITTER_DEFAULT
    capacity: int | None = None
    on_full: OnFull = "refuse"
    on_expiry: OnExpiry = "dead"
    dedup_window: float = DEDUPLICATION_SECONDS_DEFAULT
    keep_seconds: float | None = None
    keep_bytes: int | None = None
    segment_items: int | None = None
    group_concurrency: int = 1
    rate: float | None = None
    rate_burst: int = 1

    @classmethod
    def of(cls, rules: QueueRules) -> Self:
        """Return rules as they are sent."""
        return cls(**asdict(rules))

    def rules(self) -> QueueRules:
        """Return the rules. Raises InvalidArgument."""
        return QueueRules(**{each.name: getattr(self, each.name) for each in fields(QueueRules)})


class ConfigureQueue(QueueRulesJson, forbid_unknown_fields=True):
    """How a queue is to behave. What is left out is as by default."""


class TopicRulesJson(Answer):
    """How a topic keeps what it holds. What is left out is as by default."""

    keep_seconds: float | None = None
    keep_bytes: int | None = None
    lag_max: int | None = None
    clean_on_roll: bool | None = None
    segment_bytes: int | None = None
    segment_seconds: float | None = None
    tombstone_seconds: float = TOMBSTONE_SECONDS_DEFAULT

    @classmethod
    def of(cls, rules: TopicRules) -> Self:
        """Return rules as they are sent."""
        return cls(**asdict(rules))

    def rules(self) -> TopicRules:
        """Return the rules. Raises InvalidArgument."""
        return TopicRules(**{each.name: getattr(self, each.name) for each in fields(TopicRules)})


class ConfigureTopic(TopicRulesJson, forbid_unknown_fields=True):
    """How a topic is to keep what it holds. What is left out is as by default."""
