"""Certificates for servers in tests."""

from __future__ import annotations

from pathlib import Path

import trustme


def make_certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """A certificate for these names, with the authority that issued it in the same file; and its key."""
    authority = trustme.CA()
    issued = authority.issue_cert(*names)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    for part in (*issued.cert_chain_pems, authority.cert_pem):
        part.write_to_path(certificate, append=True)
    issued.private_key_pem.write_to_path(key)
    return certificate, key
