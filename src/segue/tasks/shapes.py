"""What the tasks of an App ask of its queues, by the name of each."""

from collections.abc import Mapping
from dataclasses import replace

from segue.errors import InvalidArgument
from segue.log.layout import checked_name
from segue.tasks.rules import TENANT_MARK, QueueShape, TaskRules


class Shapes:
    """The shapes of queues, and who asked for them. Not for two threads at once."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        """Have tenants share by `weights`, 1 unless said. Raises InvalidArgument."""
        self._shapes: dict[str, QueueShape] = {}
        self._owners: dict[str, str] = {}
        self._weights = dict(weights)
        for tenant, weight in self._weights.items():
            checked_name(tenant)
            QueueShape(weight=weight)

    def of(self, name: str) -> QueueShape:
        """Return what is asked of a queue."""
        return self._shapes.get(name, QueueShape())

    @property
    def declared(self) -> set[str]:
        """The queues of which anything is asked, or that were named."""
        return set(self._owners)

    def claim(self, rules: TaskRules, shape: QueueShape) -> None:
        """Have the queue of a task be as the task wants it.

        Raises InvalidArgument if another wants other limits.
        """
        known = self.of(rules.queue)
        if not shape.has_limits:
            return
        if known.has_limits and shape.limits != known.limits:
            raise InvalidArgument(
                f"task {rules.name}: queue {rules.queue} has other limits already, of "
                f"{self._owners.get(rules.queue)}; limits are rules of a queue, so give the task "
                "another queue="
            )
        self._owners[rules.queue] = f"task {rules.name}"
        self._shapes[rules.queue] = replace(shape, weight=known.weight)

    def declare(
        self,
        name: str,
        *,
        concurrency: int | None,
        key_concurrency: int | None,
        rate: float | None,
        burst: int | None,
        weight: int | None,
    ) -> None:
        """Have a queue be as the App says; what is None stays as it is."""
        known = self.of(checked_name(name))
        self._owners.setdefault(name, f"app.queue({name!r})")
        self._shapes[name] = QueueShape(
            concurrency=known.concurrency if concurrency is None else concurrency,
            key_concurrency=known.key_concurrency if key_concurrency is None else key_concurrency,
            rate=known.rate if rate is None else rate,
            burst=known.burst if burst is None else burst,
            weight=known.weight if weight is None else weight,
            unique=known.unique,
        )

    def weight_of(self, queue: str) -> int:
        """Return the share of a queue, or of a tenant's, in the workers' attention."""
        base, _, tenant = queue.partition(TENANT_MARK)
        weight = self.of(base).weight
        return weight * self._weights.get(tenant, 1) if tenant else weight
