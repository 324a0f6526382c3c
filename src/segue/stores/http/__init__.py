"""A store behind a Segue server, over HTTP.

wire/         what goes over the line, as types that both ends share
problems.py   errors as problem details, and back
address.py    what a URL means
line.py       one connection
calls.py      requests that may be repeated, and answers that are checked; patience.py: in steps
sense.py      answers that have the right fields and yet make no sense
store.py      the way in; queue.py, ring.py, lock.py, topics/ are what it holds
"""
