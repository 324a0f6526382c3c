"""The demo: a shop that takes orders, loses a worker and a Spark driver, and loses nothing else.

Run it with `make demo`; `python -m examples.demo --help` says what else there is.

__main__.py   arguments in, the story on the screen, an exit code out
story.py      the acts, in their order
stage.py      a temporary directory and the processes in it: none of them outlives the demo
orders.py     what is ordered, and what is wrong with some of it
shop.py       the App: tasks that work, fail, are slow, or kill the process they run in
producers.py  who sends orders: one with the library, one over HTTP
pipeline.py   the Spark driver: clean, sum by the hour, join with the dead letters, archive
evidence.py   what was sent and run, as noted outside of Segue; what that proves
outcome.py    all facts together, and whether they are what they must be
screen.py     progress bars, findings and the last table
report.py     the same as one HTML page
"""
