"""Run by every Python process of Spark's, on whose path this directory is: it starts them warm.

Spark has its workers import pyspark from a zip, which keeps no bytecode: each of them compiles it,
for a second, and one whose task failed is not used again. Here pyspark comes from where it is
installed. The processes workers are forked from import it and Segue before the fork; not pyarrow,
which starts a thread, and threads do not survive a fork.
"""

import os
import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]

if "pyspark.daemon" in sys.orig_argv:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Or else numpy has threads, too.
    import numpy  # noqa: F401 - for the workers
    import pyspark.sql.conversion
    import pyspark.sql.datasource
    import pyspark.worker  # noqa: F401 - for the workers

    import segue.spark.source  # noqa: F401 - for the workers
