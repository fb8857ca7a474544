"""Which failures of a dial may pass, and what they tell."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from openenv.core.env_client import EnvClient
from openenv.core.exceptions import ConnectError
from openenv.core.transport.address import Address
from openenv.core.transport.aio import WebSocketConnector, may_pass
from openenv.core.transport.base import DialError, TransportClosed
from openenv.testing.processes import free_port
from support.clients import CountServer


@pytest.mark.parametrize("scheme", ["https", "wss"])
async def test_tls_to_a_server_without_it_fails_at_once(server: CountServer, scheme: str) -> None:
    address = f"{scheme}://127.0.0.1:{server.url.port}"
    with pytest.raises(ConnectError, match=r"without TLS, to be reached with http://\?$") as caught:
        async with asyncio.timeout(60):
            await EnvClient(base_url=address, connect_timeout_s=600).connect()
    assert caught.value.attempts == 1


async def test_a_dead_port_is_tried_again_and_names_the_next_move() -> None:
    with pytest.raises(DialError) as caught:
        await WebSocketConnector(Address.parse(f"http://127.0.0.1:{free_port()}"))()
    assert caught.value.failure.retryable
    assert str(caught.value.failure.error).endswith(
        "connection refused: nothing listens there. Is the server up, and is this its port?"
    )


def _tls(reason: str, kind: type[ssl.SSLError] = ssl.SSLError) -> ssl.SSLError:
    error = kind(1, f"[SSL] {reason}")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (_tls("WRONG_VERSION_NUMBER"), False),
        (_tls("RECORD_LAYER_FAILURE"), False),
        (_tls("UNSUPPORTED_PROTOCOL"), False),
        (_tls("SSLV3_ALERT_HANDSHAKE_FAILURE"), False),
        (_tls("CERTIFICATE_VERIFY_FAILED", ssl.SSLCertVerificationError), False),
        (_tls("UNEXPECTED_EOF_WHILE_READING", ssl.SSLEOFError), True),
        (_tls("TLSV1_ALERT_INTERNAL_ERROR"), True),
        (ConnectionResetError(), True),
    ],
)
def test_tls_that_cannot_come_right_is_not_tried_again(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


async def test_a_ping_measures_its_round_trip_and_tells_of_a_closed_connection(server: CountServer) -> None:
    transport = await WebSocketConnector(Address.parse(server.url))()
    assert 0 < await transport.ping() < 60
    await transport.close()
    with pytest.raises(TransportClosed):
        await transport.ping()
