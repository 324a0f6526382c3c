"""A topic on a server, looked at in few calls."""

from collections.abc import Sequence

from segue.stores.redis.topics.places import all_lags
from segue.stores.redis.topics.topic import RedisTopic
from segue.stores.topic_contract import Lag, TopicInfo
from segue.stores.topic_looks import AnyTopicLooks, Who, kind_of


class RedisTopicLooks(AnyTopicLooks):
    """Looks at one topic, and changes nothing. Raises TopicNotFound."""

    def __init__(self, topic: RedisTopic) -> None:
        super().__init__(topic)
        self._core = topic._core

    def _lags(self, info: TopicInfo) -> dict[Who, Sequence[Lag]]:
        """Return how far everybody is behind, in one call for each partition."""
        del info
        return {kind_of(mark): lags for mark, lags in all_lags(self._core).items()}
