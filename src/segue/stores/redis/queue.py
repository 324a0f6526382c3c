class RedisQueue:
    def __init__(self, store, name): raise NotImplementedError
def queue_exists(store, name): raise NotImplementedError
def remove_queue(store, name): raise NotImplementedError
