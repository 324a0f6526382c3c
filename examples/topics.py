"""Topics: a reader, a group, a producer that never duplicates, and compaction."""

import segue

with segue.open("data") as store:
    orders = store.topic("orders", partitions=4)
    orders.append(b"2 apples", key="ada")  # one key, one partition, one order

    with orders.reader("audit") as reader:  # a named, durable place in every partition
        for record in reader:
            print(record.partition, record.offset, record.key, record.value)
        reader.commit()

    with orders.group("billing").join() as member:  # its members share the partitions
        for record in member.poll(timeout=1):
            print(record.key, record.value)
        member.commit()  # refused where somebody else has the partition by now


def append_once(lines: list[str]) -> int:
    """Append lines under a producer's name; return how many were not there already."""
    with segue.open("data") as store, store.topic("orders").producer("import-17") as producer:
        events = [segue.Event(key=line.split(":")[0], value=line) for line in lines]
        return sum(place is not None for place in producer.append_many(events, first_sequence=0))


def keep_the_newest() -> None:
    """Compaction keeps of every key its newest record, and offsets as they are."""
    with segue.open("data") as store:
        customers = store.topic("customers", partitions=2)
        for street in ("Main St", "High St", "Park Ave"):
            customers.append(street, key="ada")
        customers.append(None, key="bob")  # a tombstone: there is no bob any more
        customers.roll()  # what takes records is not compacted
        report = customers.compact()
        left = [(record.offset, record.key, record.value) for record in customers.records()]
        print("removed", report.removed_records, "and left", left)


lines = [f"customer {number % 3}: order {number}" for number in range(9)]
print("appended", append_once(lines), "then", append_once(lines))
keep_the_newest()
