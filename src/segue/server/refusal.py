"""Requests that go no further than the door."""

from segue.stores.http.problems import Problem

Headers = tuple[tuple[bytes, bytes], ...]


class Refused(Exception):
    """A request that goes no further; the answer says why."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Headers = (),
        retry: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = Problem(
            status=status, code=code, detail=detail, fields={}, retry_after_seconds=retry
        )
        self.headers = headers
