"""Topics in a directory.

topics/<topic>/manifest.json        how many partitions, which rules
               partition_<n>/       a log each; its readers/ hold the places of readers and groups
               groups/<group>/      who is a member, and who has which partition
               producers/           which producers there are
"""
