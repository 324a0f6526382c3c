"""What goes over the line between client and server, as types that both ends share.

Each struct is one JSON object. Bytes are text under their name where they are text, and else
Base64 under the name with `_base64` behind it, as on the command line. Times are microseconds since
1970, durations seconds.
"""
