"""Who this broker is to others."""

from dataclasses import dataclass

from gantry.model.address import Address


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Names and addresses, fixed while the broker runs.

    `address` is the host:port that name servers give to clients, and may hold a host name; `store_host` is the same
    with an IP address (IPv4 where there is one), as records and stored ids carry it.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str
    store_host: Address
    region_id: str = "DefaultRegion"
    trace_on: bool = True

    @property
    def host(self) -> str:
        """Return the host that others are told, without the brackets around an IPv6 address."""
        return self.address.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        """Return the port that others are told."""
        return self.store_host.port
