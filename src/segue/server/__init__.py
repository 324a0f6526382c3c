"""A store behind HTTP: `segue serve`. Needs the extra `server`.

A request's way in: protocol.py (bytes, and who is too slow) → app.py (from the first byte to the
answer; asgi.py, bodies.py) → access.py (who may; tokens.py) → routing.py and call.py → routes/.

routes/        every route, by what it is about; openapi.py describes them, pages/ shows that
requests.py    answers that are remembered, so that repeating does nothing twice
open_queues.py queues that stay open, and those that are not there
sessions.py    what is held for clients between requests; holding.py, members.py, task_desk.py
waiting.py     long polls; streams.py, reading.py, arrow.py, bulk*.py: much at a time
paging.py      pages of what has names; words.py: numbers as people say them
overlook.py    how the whole store stands, one look for all who ask: picture.py (what is seen),
               flow.py, task_flow.py, topic_sizes.py; listeners.py: those who are told of each
historian.py   how it stood over time, recorded and read again: sampler.py, samples.py, history.py,
               tracks.py
estimates.py   what waits in a queue, judged by some of it: estimate_readers.py
letter_*.py    what dead letters died of: letter_groups.py, letter_tally.py, letter_index.py
operations.py  what an operator sees: health.py, metrics.py, access_log.py, audit.py
threads.py     the threads that ask the store, shared out fairly
serving.py     the server as something that runs; building.py puts it together
"""
