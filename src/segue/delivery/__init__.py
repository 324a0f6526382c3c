"""The rules of delivery, pure: no file, socket, thread or clock lives here.

    message.py    what a message is, and how it is laid out in a record
    priority.py   what counts as a priority
    rules.py      the settings of a queue, checked
    life.py       the states of a message and what leads from one to the next
    events.py     what happens to messages, as records of the ledger
    ledger.py     the state of a queue: events in, answers out
    lines.py      who holds a message, or which line it is in
    message_groups.py  who may come next of a group
    rate.py       how many may come now
    keeping.py    which settled messages are kept
    retry.py      how long a failed message waits
    ranges.py     sets of offsets, kept as runs
    reasons.py    what the reasons of failures have in common
    ring*.py      the rules of a ring
    lock.py       the rules of a lock; rows.py: small records, for both
    topic_*.py    what a record of a topic is, and the settings of one
    partitioning.py  which partition a record goes to
    group.py      who of a group reads which partition

Whoever keeps messages or records, in a directory or elsewhere, asks here what to do.
"""
