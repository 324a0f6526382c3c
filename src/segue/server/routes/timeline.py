"""What has happened to one message."""

from typing import Final

import msgspec

from segue.delivery.message import MessageId
from segue.errors import InvalidArgument, InvalidName
from segue.server.call import Call
from segue.server.routes.queues import require_body_bytes
from segue.server.routing import Role, Route
from segue.stores.http.wire.timeline import BODY_BYTES_DEFAULT, TimelineJson, timeline_json


class HowMuch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much of the body to tell."""

    body_bytes: int = BODY_BYTES_DEFAULT


def timeline(call: Call) -> TimelineJson:
    """Tell what happened to a message."""
    body_bytes = call.query(HowMuch).body_bytes
    require_body_bytes(body_bytes)
    return timeline_json(call.queue.timeline(MessageId(call.names[1])), body_bytes=body_bytes)


ROUTES: Final = (
    Route(
        method="GET",
        path="/queues/{queue}/messages/{message}/timeline",
        summary="Tell what happened to one message, settled or not",
        role=Role.READ,
        about="queues",
        handle=timeline,
        query=HowMuch,
        answer=TimelineJson,
        errors=(InvalidArgument, InvalidName),
    ),
)
