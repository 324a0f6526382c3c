from segue.stores.contract import RingMode
class RedisRing: ...
def open_ring(store, name, *, capacity, entries_per_segment, mode): raise NotImplementedError
def ring_exists(store, name): raise NotImplementedError
