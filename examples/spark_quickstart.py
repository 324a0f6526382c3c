"""A topic as a table of Spark. Needs the extra `spark`; leaves its store in ./data."""

import segue
from segue.spark import session

with segue.open("data") as store:
    store.topic("orders", partitions=4).append_many([b"2 apples", b"1 pear"])

spark = session()  # Spark finds format("segue") by itself; so readStream, write and writeStream
orders = spark.read.format("segue").options(url="data", topic="orders").load()
print(orders.selectExpr("partition", "offset", "cast(value AS STRING)").collect())
