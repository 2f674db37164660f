"""Who is at the other end of a connection over loopback, as the kernel says."""

import os
import socket

from walproof.targets.cnpg.members import user_of


def test_it_is_ours_while_it_is_open_and_nobodys_once_it_is_closed() -> None:
    """The kernel shows a closed one as root's: what it had sent was carried on, with the rights of root."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        here, _ = listening.accept()
        with here:
            assert user_of(here) == os.geteuid()
            client.close()
            assert user_of(here) is None
