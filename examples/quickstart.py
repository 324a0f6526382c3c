"""The quickstart of the README: a queue and a lock."""

import segue

with segue.open("data") as store:
    queue = store.queue("mail")
    queue.push(b"to: ada", priority="high")  # durable when it returns

    with queue.lease() as job:  # acked at the end; tried again if this raises or is killed
        print(job.id, job.attempt, job.body)

    with store.lock("leader", ttl=10) as held:
        print(held.token)  # grows for ever: a fencing token
