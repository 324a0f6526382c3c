class RedisLock:
    def __init__(self, store, name, ttl): raise NotImplementedError
def lock_exists(store, name): raise NotImplementedError
