import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.address import Address, pack_host, pack_ip, unpack_host
from gantry.model.errors import InvalidMessageError

ips = st.ip_addresses().map(str)
ports = st.integers(0, 65_535)


@given(ips, ports)
def test_packed_and_back(ip: str, port: int) -> None:
    address = Address(ip, port)
    packed = pack_host(address)
    assert len(packed) == (20 if address.is_v6 else 8)
    assert unpack_host(packed) == address


@given(ips, ports)
def test_text_and_back(ip: str, port: int) -> None:
    address = Address(ip, port)
    assert Address.parse(str(address)) == address


def test_text() -> None:
    assert str(Address("10.0.0.5", 10911)) == "10.0.0.5:10911"
    assert str(Address("fe80::2", 3)) == "[fe80::2]:3"
    assert Address.parse("fe80::2:3") == Address("fe80::2", 3)


@pytest.mark.parametrize(
    "text", ["", "1.2.3.4", "host:1", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3:1", "1.2.3.4:\u0661"]
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageError, match="is not ip:port"):
        Address.parse(text)


@pytest.mark.parametrize("ip", ["", "host", "1.2.3", "::g", "1.2.3.4.5"])
def test_an_invalid_ip_is_refused(ip: str) -> None:
    with pytest.raises(InvalidMessageError, match="is not an IP address"):
        pack_ip(ip)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_ports_out_of_range_are_refused(port: int) -> None:
    with pytest.raises(InvalidMessageError, match="port"):
        pack_host(Address("1.2.3.4", port))
