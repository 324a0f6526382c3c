"""Topics on a server.

core.py        how a topic is made, and which partitions there are
partition.py   one partition's functions on the server: calls, and answers that are checked
stretch.py     what a partition answers to who reads: records, or columns
feed.py        reading several partitions; polling.py waits for what comes
topic.py       what callers see; reader.py, group.py, member.py and producer.py the rest of it
keeping.py     retention and compaction; bulk.py whole segments in and out
"""
