"""A web server on this machine that speaks https with a certificate of its own, well-behaved or not."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Site:
    """What is served: bytes by path, and how replies go wrong."""

    address: str = ""
    certificate: Path = Path()
    files: dict[str, bytes] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)  # the ETag, where one is told
    broken: dict[str, int] = field(default_factory=dict)  # the connection ends after so many bytes
    endless: set[str] = field(default_factory=set)  # no length is told, and bytes come without end
    statuses: dict[str, int] = field(default_factory=dict)  # instead of the file
    silent: set[str] = field(default_factory=set)  # no answer
    fetched: list[str] = field(default_factory=list)  # paths of GET requests, with their queries


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self.site.fetched.append(self.path)
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        site, path = self.site, self.path.lstrip("/").partition("?")[0]
        if path in site.silent:
            time.sleep(3)
            return
        if path in site.statuses or path not in {*site.files, *site.endless}:
            self.send_error(site.statuses.get(path, 404))
            return
        self.send_response(200)
        if path in site.versions:
            self.send_header("ETag", site.versions[path])
        if path in site.endless:
            self.end_headers()
            while body:
                self.wfile.write(bytes(2**20))
            return
        content = site.files[path]
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[: site.broken.get(path, len(content))])
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests look at the site's own list."""


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that has had enough is what some tests are about."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server on a free port, in a thread."""
    with QuietServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving_https(folder: Path) -> Iterator[Site]:
    site = Site(certificate=folder / "certificate.pem")
    write_certificate(site.certificate, folder / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.certificate, folder / "key.pem")
    with serving(type("SiteHandler", (Handler,), {"site": site}), context) as port:
        site.address = f"https://127.0.0.1:{port}"
        yield site


def write_certificate(certificate: Path, key: Path) -> None:
    """A key and its self-signed certificate for this machine."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(_pem()))
    key.write_bytes(private_bytes(private))


def private_bytes(private: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import NoEncryption, PrivateFormat

    return bytes(private.private_bytes(_pem(), PrivateFormat.PKCS8, NoEncryption()))


def _pem() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.PEM
