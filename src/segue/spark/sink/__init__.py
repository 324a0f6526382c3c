"""Writing from Spark: tasks write sealed segments aside, the driver adopts them, all or none."""
