"""How fast Segue is, next to its peers, on this machine and in this minute: `python -m benchmarks`.

`race.py` takes turns and times, `stores.py` and `peers.py` are the contestants, `report.py` prints;
the other modules measure one thing each. Nothing here is part of the package that is installed.
"""
