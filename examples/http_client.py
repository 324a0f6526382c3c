"""A store behind HTTP, from Python. Beside it runs: segue serve data"""

import threading

import segue
from segue.errors import LeaseLost

URL = "http://localhost:8000"  # with tokens: segue.open(URL, token="segue_…"), or SEGUE_TOKEN


def work() -> None:
    """Take messages as they come, on whichever machine, until one says stop."""
    with segue.open(URL) as store:
        for job in store.queue("mail").consume(wait=30):
            with job:  # kept while we work, acked at the end, tried again if this raises
                print(job.id, job.attempt, job.text)
                if job.body == b"stop":
                    return


with segue.open(URL) as store:
    mail = store.queue("mail")
    worker = threading.Thread(target=work)
    worker.start()
    mail.push(b"to: ada", key="welcome ada")  # a key: not twice, even if the server dies meanwhile
    mail.push(b"to: ada", key="welcome ada")
    mail.push(b"stop", priority="low")
    worker.join()

    slow = store.queue("slow")
    slow.push(b"work")
    job = slow.lease(ttl=0.05)
    slow.lease(wait=10).ack()  # the first lease expired: somebody else did it
    try:
        job.ack()
    except LeaseLost as lost:  # raised here as on any store, with its fields
        print(lost.receipt, lost.reason)

    with store.lock("leader", ttl=10) as held:
        print("leader", held.token)

    orders = store.topic("orders", partitions=2)
    orders.append(b"2 apples", key="ada")
    with orders.group("billing").join() as member:
        for record in member.poll(timeout=5):
            print(record.partition, record.offset, record.key, record.value)
        member.commit()
