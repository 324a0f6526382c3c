"""`segue doctor`: whether a machine and a store are fit for each other.

Each file has one subject: what was found out about it as a frozen value, a pure function from that
value to verdicts, and the thin code that looks. Nothing here opens a store: what cannot be opened
is what a doctor is called for.

| file | subject |
|---|---|
| `command.py`, `looks.py` | the verb and its exit code; which looks are taken at what |
| `check.py`, `running.py` | a verdict; looks that end in time and hide no other |
| `directory.py` | all that is looked at in a directory |
| `mounts.py`, `file_system.py` | the file system below it |
| `probe.py`, `syncing.py` | the one file that is written; whether syncs can be what they say |
| `space.py`, `limits.py` | what the disk has left, and what the system allows |
| `store_format.py`, `logs.py`, `damage.py` | what is there, and what its headers tell |
| `permissions.py`, `holders.py` | who may use it, and who does |
| `clock.py` | the time |
| `installed.py`, `java.py` | what is installed |
| `redis_server.py`, `redis_verdicts.py`, `segue_server.py` | servers |
"""
