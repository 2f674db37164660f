"""HTTP clients of a cluster's own servers: TLS by the files given, never a proxy, never where a redirect points."""

import ssl

import httpx2

from walproof.errors import UsageError


def private_client(
    section: str, *, ca_file: str = "", cert_file: str = "", key_file: str = "", verify: bool = True, timeout_s: float
) -> httpx2.Client:
    """A client for servers at private addresses; UsageError names the section whose certificate cannot be read.

    ca_file, cert_file, key_file: paths of PEM files, "" for the system's and for none; timeout_s: to connect and to
    answer, each.
    """
    cert = (cert_file, key_file or cert_file) if cert_file else None
    try:
        trusted = ssl.create_default_context(cafile=ca_file) if ca_file else verify
        if cert:
            ssl.create_default_context().load_cert_chain(*cert)
    except OSError as wrong:
        files = ", ".join(f for f in (ca_file, cert_file, key_file) if f)
        raise UsageError(
            f"a certificate of [{section}] cannot be read ({files}): {wrong.strerror or wrong}",
            "the files of certificates and keys are paths of PEM files this user may read",
        ) from None
    # Never through a proxy of the environment: these are private addresses.
    # Never to where a redirect points: a server answers itself or not at all.
    return httpx2.Client(cert=cert, verify=trusted, timeout=timeout_s, trust_env=False, follow_redirects=False)
