"""Signatures of requests to brokers with an ACL."""

from gantry.remoting.command import RemotingCommand
from spark.datasource.brokers.live import SigningTransport, sign
from spark.datasource.options import Credentials
from tests.support.scriptedpeer import ok

# From RocketMQ's own AclUtils.
EXT = {"topic": "TopicTest", "a": "1", "Zeta": "z"}
SIGNATURE = "Ibul9XkOv2yCxLP/qYZMcVSdA0I="


def test_a_request_is_signed_as_rocketmq_signs_it():
    command = RemotingCommand.request(11, ext=dict(EXT), body=b"BODY")
    for _ in range(2):  # A request that is sent again is signed again.
        sign(command, Credentials("rocketmq2", "12345678"))
        assert command.ext_fields == {**EXT, "AccessKey": "rocketmq2", "Signature": SIGNATURE}


async def test_every_request_of_a_transport_is_signed(transport):
    transport.at("a:1", {11: ok})
    signing = SigningTransport(transport, Credentials("rocketmq2", "12345678", "token"))
    await signing.invoke("a:1", RemotingCommand.request(11, ext=dict(EXT), body=b"BODY"), timeout_ms=1_000)
    await signing.invoke_one_way("a:1", RemotingCommand.request(11, one_way=True))
    await signing.close()
    first, second = (request.ext_fields for _, request in transport.requests)
    assert (first["SecurityToken"], second["AccessKey"], transport.is_closed) == ("token", "rocketmq2", True)
    assert first["Signature"] != SIGNATURE != second["Signature"]
