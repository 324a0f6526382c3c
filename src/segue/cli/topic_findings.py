"""What is wrong with a store's topics beside their logs: manifests, groups, origins."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from segue.cli.findings import Finding
from segue.cli.survey import TOPICS
from segue.errors import CorruptManifest
from segue.log.disk import Disk, storage_errors
from segue.log.layout import is_name


def topic_findings(store: Path) -> Iterator[Finding]:
    """Yield what is wrong. Changes nothing."""
    # Imported here: verifying a log alone does without it.
    from segue.delivery.group import STATE_FORMAT, GroupState
    from segue.stores.file.topics.origins import FORMAT, Origins
    from segue.stores.file.topics.producer import FORMAT as ROUTES_FORMAT

    for topic in filter(lambda path: is_name(path.name), _listed(store / TOPICS, "*")):
        yield from _manifest_findings(topic)
        for state in _listed(topic, "groups/*/state.json"):
            yield from _document_findings(
                state, STATE_FORMAT, GroupState.from_dict, "the group begins anew"
            )
        for origins in _listed(topic, "partition_*/origins.json"):
            yield from _document_findings(
                origins, FORMAT, Origins.from_dict, "none: deleting it goes by what is left"
            )
        for routes in _listed(topic, "producers/*/routes.json"):
            yield from _document_findings(
                routes, ROUTES_FORMAT, lambda values: values["routes"], "none: deleting it forgets"
            )


def _manifest_findings(topic: Path) -> Iterator[Finding]:
    from segue.stores.file.topics.manifest import FILENAME, read_manifest

    remedy = "none: 'segue topic create' makes a new one"
    try:
        manifest = read_manifest(topic, Disk())
    except CorruptManifest as error:
        yield Finding(path=error.path, problem=error.reason, remedy=remedy)
        return
    if manifest is None and _listed(topic, "partition_*"):
        yield Finding(path=topic / FILENAME, problem="it is missing", remedy=remedy)


def _document_findings(
    path: Path, format_: int, parse: Callable[[dict[str, Any]], object], remedy: str
) -> Iterator[Finding]:
    from segue.stores.file.documents import read_document

    try:
        values = read_document(path, Disk(), format_=format_)
        if values is not None:
            parse(values)
    except CorruptManifest as error:
        yield Finding(path=path, problem=error.reason, remedy=remedy)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield Finding(path=path, problem=f"it makes no sense: {error}", remedy=remedy)


def _listed(directory: Path, pattern: str) -> list[Path]:
    with storage_errors(f"listing {directory}"):
        return sorted(directory.glob(pattern))
