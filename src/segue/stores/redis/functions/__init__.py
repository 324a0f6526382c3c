"""What runs on the server, in Lua: one file for each kind of thing a store holds."""
