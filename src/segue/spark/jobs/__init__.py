"""Jobs over a store, each a function that takes a Spark session and returns a report.

archive.py    a topic, or what a queue is done with, to Parquet; histories.py: which offsets,
              manifests.py: what is archived
replay.py     files to a topic or queue
running.py    what becomes of Spark's errors, and paths as Spark takes them
"""
