"""The log of the README: append, read on, retain."""

from segue import Log

with Log("data/events") as log:
    log.append(b"created")  # durable when it returns
    log.append_many([b"paid", b"shipped"])  # one batch, all or nothing

    with log.reader("mailer") as reader:  # a named, durable place in the log
        for record in reader:
            print(record.offset, record.time, record.payload)
        reader.commit()

    log.cleanup()  # delete what every reader has passed
