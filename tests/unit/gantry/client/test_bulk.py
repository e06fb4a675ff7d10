"""Requests that go over the second connection to a broker."""

import pytest

from gantry.client.bulk import BULK_BODY_BYTES, is_bulk
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_sends_of_large_messages_are_bulk(code: RequestCode):
    assert not is_bulk(RemotingCommand.request(code))
    assert not is_bulk(RemotingCommand.request(code, body=bytes(BULK_BODY_BYTES)))
    assert is_bulk(RemotingCommand.request(code, body=bytes(BULK_BODY_BYTES + 1)))


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
    ],
)
def test_batches_and_reads_of_messages_are_bulk(code: RequestCode):
    assert is_bulk(RemotingCommand.request(code))


@pytest.mark.parametrize("code", [RequestCode.HEART_BEAT, RequestCode.UPDATE_CONSUMER_OFFSET])
def test_requests_bound_to_a_connection_or_with_short_answers_are_not_bulk(code: RequestCode):
    assert not is_bulk(RemotingCommand.request(code, body=bytes(10 * BULK_BODY_BYTES)))
