class RedisTopic: ...


def open_topic(store, name, *, partitions, rules):
    raise NotImplementedError


def topic_exists(store, name):
    raise NotImplementedError
