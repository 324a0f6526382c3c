"""Examples for the description of the routes that are used most. Tests hold them to the types."""

from typing import Final

from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What is sent and answered, as JSON."""

    answer: object
    body: object = None


_MESSAGE: Final = {
    "id": "0-17",
    "body": '{"order": 17}',
    "pushed_us": 1_790_000_000_000_000,
}
_COUNTS: Final = {"ready": 3, "delayed": 0, "leased": 1, "dead": 0}

EXAMPLES: Final = {
    ("GET", ""): Example(
        answer={
            "server": "segue",
            "version": "1.0.0",
            "api": 1,
            "store": "directory",
            "durable": "always",
        }
    ),
    ("GET", "/queues"): Example(answer={"queues": ["orders", "mails"]}),
    ("POST", "/queues/{queue}/messages"): Example(
        body={"messages": [{"json": {"order": 17}, "priority": 0, "key": "order-17"}]},
        answer={"ids": ["0-17"]},
    ),
    ("POST", "/queues/{queue}/pop"): Example(
        body={"count": 1, "wait": 20}, answer={"messages": [_MESSAGE]}
    ),
    ("POST", "/queues/{queue}/lease"): Example(
        body={"count": 1, "ttl": 30, "wait": 20, "owner": "worker-1"},
        answer={"jobs": [{**_MESSAGE, "receipt": "0-17/42", "tries": 1}], "ttl": 30},
    ),
    ("POST", "/queues/{queue}/ack"): Example(body={"receipts": ["0-17/42"]}, answer=None),
    ("POST", "/queues/{queue}/nack"): Example(
        body={"receipt": "0-17/42", "outcome": "fail", "delay": 5, "reason": "no such customer"},
        answer=None,
    ),
    ("POST", "/queues/{queue}/extend"): Example(
        body={"receipt": "0-17/42", "ttl": 60}, answer=None
    ),
    ("GET", "/queues/{queue}/count"): Example(answer=_COUNTS),
    ("POST", "/queue/{queue}/push"): Example(
        body={"item": {"id": 1}, "priority": 0},
        answer={"success": True, "message": "1 item is pushed", "items_pushed": 1, "ids": ["0-0"]},
    ),
    ("POST", "/queue/{queue}/pop"): Example(answer={"item": {"id": 1}}),
    ("POST", "/queue/{queue}/acknowledge"): Example(
        body={"lock_id": "0-17.42"},
        answer={"success": True, "message": "1 item is acknowledged", "items_acknowledged": 1},
    ),
}
"""By method and path, as the table of routes has them."""
