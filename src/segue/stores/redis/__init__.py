"""A Redis or Valkey server as a store: the same promises, for many machines.

`address` says what a URL means, `servers` which server has which key, `connections` keeps the
sockets, `calls` makes one round trip of every operation and repeats it safely. What happens on the
server is written in `functions/*.lua`, with the keys it uses on top of each file.
"""
