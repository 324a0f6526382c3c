"""What the driver does with a directory: it adopts what the tasks wrote aside, all and once."""

from segue.log.disk import Disk
from segue.spark.options import WriteOptions
from segue.stores.file.store import FileStore
from segue.stores.file.writes import Writes
from segue.stores.opening import directory_of, open_directory


class Committer(Writes):
    """Makes writes to one topic or queue happen."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(
            directory_of(options.url),
            options.kind,
            options.name,
            disk=Disk(),
            sync=options.sync != "os",
        )
        self._options = options

    def _store(self) -> FileStore:
        options = self._options
        return open_directory(
            directory_of(options.url),
            sync=options.sync,
            create=False,
            allow_network=options.allows_network,
        )
