"""Features that this broker does not have yet. It replies with code 3 to requests for them.

The broker never handles such a request in part, and never does something else instead.

A message that asks for such a feature is refused too. As a normal message, it would be delivered in another form.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from gantry.model import sysflag
from gantry.model.message import find_property
from gantry.model.propertyname import PropertyName
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.refusal import RefusalError

UNSUPPORTED: Mapping[int, str] = {
    RequestCode.GET_BROKER_HA_STATUS: "replication to slaves",
    RequestCode.EXCHANGE_BROKER_HA_INFO: "replication to slaves",
}

_LEFT_OUT: Mapping[int, str] = {
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "static topics are left out; the queues of a topic belong to brokers",
    **dict.fromkeys(
        (
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        ),
        "the flow control of cold data by group is left out; reads of cold data run in threads of their own and have a limit",
    ),
    RequestCode.SET_COMMITLOG_READ_MODE: "the read-ahead mode of the CommitLog can't be set; the broker chooses it",
}
"""Features of RocketMQ that Gantry does not have by decision (ADR 0046)."""

_FEATURES: Mapping[str, str] = {
    PropertyName.INNER_NUM: "inner batches",
    PropertyName.INNER_BASE: "inner batches",
}

_TRAN_MSG = PropertyName.TRAN_MSG.encode()
_NAMES_TRAN_MSG = f"\x02{PropertyName.TRAN_MSG}\x01"
_IS_TRAN_MSG = f"{_NAMES_TRAN_MSG}true\x02"
TRANSACTION_OR_INNER_BATCH = sysflag.TRANSACTION_MASK | sysflag.NEED_UNWRAP | sysflag.INNER_BATCH


def unsupported_handlers() -> dict[int, Handler]:
    """Return the handlers that refuse the requests of the missing features."""
    later = {code: f"{feature} comes in a later release" for code, feature in UNSUPPORTED.items()}
    return {code: _refusing(code, reason) for code, reason in {**later, **_LEFT_OUT}.items()}


def refuse_unsupported(properties: Mapping[str, str], supported: AbstractSet[str]) -> None:
    """Check the properties of a message; `supported` has the names that the features of this broker handle.

    Raises:
        RefusalError: A property asks for a feature that does not exist yet; the remark names the property.
    """
    for name, value in properties.items():
        feature = _FEATURES.get(name)
        if feature is None or name in supported or is_neutral(name, value):
            continue
        raise RefusalError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"property {name}={value[:64]}: {feature} are not supported yet"
            if feature.endswith("s")
            else f"property {name}={value[:64]}: {feature} is not supported yet",
        )


def refuse_sys_flag(sys_flag: int, properties: str | None = None) -> None:
    """Check the bits of TRANSACTION_OR_INNER_BATCH in the sysFlag of a message.

    Args:
        sys_flag: The flag; clients mark a transactional message as prepared.
        properties: Properties of the message; None for a batch.

    Raises:
        RefusalError: The flag marks an inner batch, or a transaction of which the properties say nothing.
    """
    if sys_flag & (sysflag.NEED_UNWRAP | sysflag.INNER_BATCH):
        raise RefusalError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"sysFlag={sys_flag}: inner batches are not supported yet"
        )
    kind = sys_flag & sysflag.TRANSACTION_MASK
    if kind == sysflag.TRANSACTION_NONE:
        return
    text = f"\x02{properties}"
    if kind == sysflag.TRANSACTION_PREPARED and _IS_TRAN_MSG in text and text.count(_NAMES_TRAN_MSG) == 1:
        return  # As clients write it: no decoding.
    named = find_property((properties or "").encode("utf-8", "replace"), _TRAN_MSG) or ""
    if kind != sysflag.TRANSACTION_PREPARED or is_neutral(PropertyName.TRAN_MSG, named):
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag={sys_flag}: only a message with the property TRAN_MSG=true may be of a transaction, and only "
            "prepared",
        )


def is_neutral(name: str, value: str) -> bool:
    """Return whether this value of a feature's property asks for nothing. Raises RefusalError for an invalid value."""
    if name == PropertyName.TRAN_MSG:
        return value.lower() != "true"
    if name != PropertyName.DELAY:
        return False
    try:
        return int(value) <= 0
    except ValueError:
        raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, f"property DELAY={value[:64]}: is not a number") from None


def _refusing(code: int, reason: str) -> Handler:
    remark = f" request type {code} not supported: {reason}"

    def refuse(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    return refuse
