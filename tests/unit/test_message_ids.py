"""What messages and leases are called."""

import pytest

from segue.delivery.events import ASIDE
from segue.delivery.priority import PRIORITY_MAX
from segue.errors import InvalidArgument
from segue.stores.message_ids import key_of, lease_of, message_id

NUMBER_MAX = (1 << 64) - 1


@pytest.mark.parametrize("lane", [0, PRIORITY_MAX, ASIDE])
@pytest.mark.parametrize("offset", [0, NUMBER_MAX])
def test_a_message_is_found_again_by_its_id(lane: int, offset: int) -> None:
    """Also at the ends of what there can be."""
    id_ = message_id(lane, offset)

    assert key_of(id_) == (lane, offset)
    assert lease_of(f"{id_}/{NUMBER_MAX}") == (lane, offset, NUMBER_MAX)


@pytest.mark.parametrize(
    "id_", [f"{ASIDE}-0", f"{ASIDE + 1}-5", f"0-{NUMBER_MAX * 10}", "0-٣", "-1-0", "0"]
)
def test_what_can_be_no_message_is_no_id(id_: str) -> None:
    """A lane that is none must not pass for that of delayed messages when its loss is told."""
    with pytest.raises(InvalidArgument):
        key_of(id_)
    with pytest.raises(InvalidArgument):
        lease_of(f"{id_}/1")


@pytest.mark.parametrize("token", ["", "-1", "x", str(NUMBER_MAX * 10)])
def test_a_token_is_a_number_that_a_lease_may_have(token: str) -> None:
    """Before anything is asked."""
    with pytest.raises(InvalidArgument):
        lease_of(f"0-0/{token}")
