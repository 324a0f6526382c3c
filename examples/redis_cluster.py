"""The same code on a Redis or Valkey cluster: queues on all its nodes, workers on any machine.

Only the URL says so. A queue is on one node, and no call touches two: a cluster scales with the
number of queues, here one for each shop. With `?replicas=1` a call returns when a replica has what
it has changed, too, so that it survives the loss of a master.

    python examples/redis_cluster.py "redis+cluster://127.0.0.1:7000,127.0.0.1:7001?replicas=1"

It prints where the queues lie and what came of the orders, and fails unless each was billed once.
It keeps to a namespace of its own, and removes its queues at the end.
"""

import sys
import threading
from collections import Counter

from redis.cluster import RedisCluster

import segue

SHOPS = [f"shop-{number}" for number in range(12)]
ORDERS = [f"order {number}" for number in range(25)]
WORKERS = 3
NAMESPACE = "segue-example"


def count_queues_by_port(url: str) -> Counter[int]:
    """Return how many of the queues each node has: the keys of a queue share a hash tag."""
    host, port = url.partition("://")[2].partition("?")[0].split(",")[0].rsplit(":", 1)
    with RedisCluster(host=host, port=int(port)) as cluster:
        nodes = [cluster.get_node_from_key(f"{NAMESPACE}:{{queue:{shop}}}") for shop in SHOPS]
    return Counter(node.port for node in nodes if node is not None)


def work(url: str, shops: list[str]) -> None:
    """Bill the orders of some shops, as a worker on another machine would."""
    with segue.open(url) as store:
        bills = store.queue("bills")
        for shop in shops:
            for job in store.queue(shop).consume(wait=0.2):
                bills.push(f"{shop}: {job.text}", key=f"{shop}/{job.id}")  # billed once


def remove_queues(store: segue.Store) -> None:
    """Leave nothing behind, or nothing of those before."""
    for name in store.queues():
        store.remove_queue(name)


def main(url: str) -> None:
    """Sell in every shop, bill, and count."""
    print(f"queues by port of their node: {dict(count_queues_by_port(url))}", flush=True)
    url = f"{url}{'&' if '?' in url else '?'}namespace={NAMESPACE}"
    with segue.open(url) as store:
        remove_queues(store)  # of a run that was interrupted
        for shop in SHOPS:
            store.queue(shop).push_many(ORDERS)
        workers = [
            threading.Thread(target=work, args=(url, SHOPS[number::WORKERS]))
            for number in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

        bills = [message.text for message in store.queue("bills").pop_many(10_000)]
        left = sum(store.queue(shop).count().total for shop in SHOPS)
        print(f"{len(bills)} bills for {len(SHOPS) * len(ORDERS)} orders, {left} left")
        remove_queues(store)
    if left or sorted(bills) != sorted(f"{shop}: {order}" for shop in SHOPS for order in ORDERS):
        raise SystemExit("orders were lost, or billed twice")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: redis_cluster.py redis+cluster://HOST:PORT,HOST:PORT")
    main(sys.argv[1])
