"""Topics behind a server.

topic.py      the door to all of it
reading.py    records, tables and what comes, page by page
polling.py    what a reader and a member have in common; reader.py, member.py
group.py      groups, and joining them
producer.py   appending without ever duplicating
bulk.py       whole segments in and out

What the server holds for a reader, member or producer is a session. One that is gone (its time was
over, or the server was restarted) is opened anew where that takes nothing from anybody.
"""
