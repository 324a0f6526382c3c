"""A store in a directory: queues, rings, locks and topics as views over logs.

    store.py       the directory as a whole
    place.py       where things lie, and how their logs are opened
    queue.py       the queue as its callers see it; absent.py: one that is not there yet
    core.py        one queue's logs and ledger, shared by all handles of a process
    journal.py     the ledger on disk: following others, checkpoints
    lanes.py       the logs that hold messages
    pushing.py     what is looked at before a message is appended
    delivering.py  which messages come next
    settling.py    how leases end
    letters.py     dead letters
    history.py     what is still kept
    upkeep.py      giving space back
    inspection.py  looking at a queue
    segment_map.py which segments hold what; segment_pins.py: what keeps them
    browsing.py    how single messages stand, and page after page of them
    chronicle.py   what happened to one message: traces.py finds it in the ledger, by columns where
                   there is much, story.py tells it, letter_search.py finds letters by message
    portrait.py    a queue at one moment, and stretches.py: parts of logs; both by columns
    writes.py      what Spark and servers prepare aside; adopting.py takes it in, once
    ring*.py       the ring
    lock*.py       the lock; turns.py: what both do
    topics/        topics (docs/architecture.md)
    claims.py      files that are locked; documents.py: small ones of JSON
    neighbours.py  a few records of a log

A queue's path through them: pushing → lanes; delivering and settling → journal; upkeep follows.
"""
