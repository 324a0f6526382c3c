"""Jobs over a store, each a function that takes a Spark session and returns a report.

archive.py    a topic, or what a queue is done with, to Parquet; histories.py: which offsets,
              manifests.py: what is archived
replay.py     files to a topic or queue
audit.py      every segment checked, by many tasks; order.py: what no segment shows alone
report.py     how topics and queues have been doing; ledger.py: what became of messages,
              report_page.py, report_sections.py: the page
triage.py     dead letters by what they died of
migrate.py    states of old, of any size; state_scan.py: where their items lie
tasks.py      pieces of work, one for each task of Spark
running.py    what becomes of Spark's errors, and paths as Spark takes them
"""
