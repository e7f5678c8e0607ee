"""Who we are to ZooKeeper, and how the connection is protected: plain values, checked before it is made.

With credentials, every znode that txstream makes is for the same credentials alone (the scheme `auth`).
"""

from __future__ import annotations

import importlib.util
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from txstream.core.errors import UsageError

DIGEST, SASL = "digest", "sasl"
SYSTEM = "system"


@dataclass(frozen=True)
class ZooKeeperAccess:
    """`auth` is "digest" or "sasl" (DIGEST-MD5), with `user` and `password`; None is nobody. `tls_ca` turns
    TLS on: a file with the certificates to trust, or "system" for the machine's own. `tls_certificate` and
    `tls_key` are files with ours.

    Raises UsageError for what does not go together or is not there.
    """

    auth: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if self.auth not in (None, DIGEST, SASL):
            raise UsageError(
                f"zookeeper_auth is {self.auth!r}; it is {DIGEST!r} or {SASL!r} (--zookeeper-auth, "
                "TXSTREAM_ZOOKEEPER_AUTH)"
            )
        if self.auth is None and (self.user or self.password):
            raise UsageError(
                "ZooKeeper has a user or a password and no use for it; give --zookeeper-auth digest or sasl"
            )
        if self.auth is not None:
            self._check_credentials()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise UsageError(
                "give both --zookeeper-tls-certificate and --zookeeper-tls-key, or neither: the key proves "
                "that the certificate is yours"
            )
        if self.tls_certificate is not None and self.tls_ca is None:
            raise UsageError("--zookeeper-tls-certificate needs --zookeeper-tls-ca, which turns TLS on")
        for flag, file in (
            ("ca", None if self.tls_ca == SYSTEM else self.tls_ca),
            ("certificate", self.tls_certificate),
            ("key", self.tls_key),
        ):
            if file is not None and not Path(file).is_file():
                raise UsageError(f"--zookeeper-tls-{flag} {file}: there is no such file")
        if self.uses_tls:
            self._check_files()

    def _check_files(self) -> None:
        """Read the files once here: the client would ask for the password of a key in the terminal, or try
        again and again."""
        try:
            self.tls_context()
        except OSError as error:
            raise UsageError(
                f"--zookeeper-tls-ca {self.tls_ca}, or --zookeeper-tls-certificate and --zookeeper-tls-key, "
                f"cannot be used: {error}; they are PEM files, and the key belongs to the certificate"
            ) from error

    def _check_credentials(self) -> None:
        if not self.user or not self.password:
            raise UsageError(
                f"ZooKeeper's {self.auth} needs a user and a password: give --zookeeper-user, and "
                "--zookeeper-password-file or TXSTREAM_ZOOKEEPER_PASSWORD"
            )
        if self.auth == DIGEST and ":" in self.user:
            raise UsageError(f"ZooKeeper's user {self.user!r} has a colon in it, which ends a name in digest")
        if self.auth == SASL and importlib.util.find_spec("puresasl") is None:
            raise UsageError(
                "ZooKeeper's sasl needs the package pure-sasl; type pip install 'txstream[sasl]'"
            )

    @property
    def uses_tls(self) -> bool:
        return self.tls_ca is not None

    @property
    def shown(self) -> str:
        """Who we are, for messages."""
        return "nobody (no credentials)" if self.auth is None else f"{self.auth} user {self.user!r}"

    def tls_context(self) -> ssl.SSLContext:
        """Return a context for a connection of our own, to learn why the client's does not come about."""
        context = ssl.create_default_context(cafile=None if self.tls_ca == SYSTEM else self.tls_ca)
        if self.tls_certificate is not None:
            context.load_cert_chain(self.tls_certificate, self.tls_key, self._ask_for_password)
        return context

    def _ask_for_password(self) -> str:
        raise UsageError(
            f"--zookeeper-tls-key {self.tls_key} is encrypted; give one that is not, in a file that only its "
            f"owner can read: openssl pkey -in {self.tls_key} -out plain.key"
        )
