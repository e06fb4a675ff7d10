"""The broker's names and addresses, as other processes know them."""

from dataclasses import dataclass

from gantry.model.address import Address


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The broker's names and addresses, which do not change while it runs.

    `address` is the host:port that name servers give to clients. It may hold a host name. `store_host` is the same
    address with an IP address (IPv4 if there is one). Records and stored message ids contain it.
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
        """Return the advertised host, without the brackets around an IPv6 address."""
        return self.address.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        """Return the advertised port."""
        return self.store_host.port
