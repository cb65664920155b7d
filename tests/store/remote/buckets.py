"""Buckets on this machine: of Google's JSON interface what gcsfs asks for, and moto's S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.store.remote.site import private_bytes, serving

TOKEN = "t0ken-that-nobody-may-see"
NAME = "season"


@dataclass
class Bucket:
    """One bucket: objects by their keys."""

    scheme: str
    environment: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    downloads: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)  # keys that nobody can upload
    secrets: tuple[str, ...] = ()

    def put(self, key: str, content: bytes) -> None:
        self.objects[key] = content
        self.generations[key] = self.generations.get(key, 0) + 1

    def contents(self) -> dict[str, bytes]:
        return dict(self.objects)

    def url(self, key: str) -> str:
        return f"{self.scheme}://{NAME}/{key}"


class GoogleHandler(BaseHTTPRequestHandler):
    """Objects with their generations, lists, simple uploads, and a token for whoever signs for it."""

    bucket: Bucket

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        way = parts.path.removeprefix("/download").removeprefix("/storage/v1/b/").split("/", 2)
        if not self._is_let_in(way[0]):
            return
        key = unquote(way[2]) if len(way) > 2 else ""
        if len(way) == 1:
            self._reply(200, {"name": NAME})
        elif not key:
            self._reply(200, self._listed(asked.get("prefix", ""), asked.get("delimiter", "")))
        elif key not in self.bucket.objects:
            self._fail(404, f"No such object: {NAME}/{key}")
        elif asked.get("alt") == "media":
            self.bucket.downloads.append(key)
            self._send(200, self.bucket.objects[key])
        else:
            self._reply(200, self._described(key))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/token":
            self._reply(200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
            return
        if not self._is_let_in(urlsplit(self.path).path.removeprefix("/upload/storage/v1/b/").split("/")[0]):
            return
        _, description, content = body.removesuffix(b"\n--==0==--").split(b"--==0==", 2)
        key = str(json.loads(description.partition(b"\n\n")[2])["name"])
        if key in self.bucket.failing:
            self._fail(403, "no")
            return
        self.bucket.put(key, content.partition(b"\n\n")[2])
        self.bucket.uploads.append(key)
        self._reply(200, self._described(key))

    def _is_let_in(self, name: str) -> bool:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._fail(401, "Anonymous caller does not have storage.objects.get access")
        elif name == "forbidden":
            self._fail(403, f"robot does not have access to it: {TOKEN}")
        elif name != NAME:
            self._fail(404, "The specified bucket does not exist.")
        else:
            return True
        return False

    def _listed(self, prefix: str, delimiter: str) -> dict[str, Any]:
        keys = [key for key in sorted(self.bucket.objects) if key.startswith(prefix)]
        deeper = {key for key in keys if delimiter and delimiter in key.removeprefix(prefix)}
        folders = {prefix + key.removeprefix(prefix).partition(delimiter)[0] + delimiter for key in deeper}
        return {"items": [self._described(key) for key in keys if key not in deeper], "prefixes": sorted(folders)}

    def _described(self, key: str) -> dict[str, Any]:
        generation = self.bucket.generations[key]
        when = datetime(2026, 1, 1, 0, generation, tzinfo=UTC).isoformat().replace("+00:00", "Z")
        size = str(len(self.bucket.objects[key]))
        return {"name": key, "bucket": NAME, "size": size, "generation": str(generation), "updated": when}

    def _fail(self, status: int, message: str) -> None:
        self._reply(status, {"error": {"code": status, "message": message}})

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        self._send(status, json.dumps(content).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests look at the bucket's own lists."""


@cache
def _account_key() -> str:
    from cryptography.hazmat.primitives.asymmetric import rsa

    return private_bytes(rsa.generate_private_key(public_exponent=65537, key_size=2048)).decode()


@contextmanager
def google(folder: Path) -> Iterator[Bucket]:
    """A bucket that only whoever has the key of its service account gets into."""
    bucket, key = Bucket("gs"), _account_key()
    with serving(type("BucketHandler", (GoogleHandler,), {"bucket": bucket})) as port:
        address = f"http://127.0.0.1:{port}"
        account = {
            "type": "service_account",
            "project_id": "test",
            "private_key_id": "1",
            "private_key": key,
            "client_email": "robot@test",
            "token_uri": f"{address}/token",
        }
        (folder / "account.json").write_text(json.dumps(account))
        bucket.environment = {
            "STORAGE_EMULATOR_HOST": address,
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "account.json"),
            "NO_GCE_CHECK": "true",
            "no_proxy": "127.0.0.1",
        }
        bucket.secrets = (TOKEN, key.splitlines()[1])
        yield bucket


class AmazonBucket(Bucket):
    """A bucket of moto's server, seen through a client of its own."""

    client: Any = None

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=NAME, Key=key, Body=content)

    def contents(self) -> dict[str, bytes]:
        listed = self.client.list_objects_v2(Bucket=NAME).get("Contents", [])
        return {one["Key"]: self.client.get_object(Bucket=NAME, Key=one["Key"])["Body"].read() for one in listed}


@contextmanager
def amazon() -> Iterator[Bucket]:
    """moto does not ask who comes; that the credentials are told to nobody can be seen all the same."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        bucket = AmazonBucket("s3", secrets=("s3cret-that-nobody-may-see",))
        bucket.environment = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": bucket.secrets[0],
            "AWS_DEFAULT_REGION": "us-east-1",
            "no_proxy": "127.0.0.1",
        }
        bucket.client = boto3.client(
            "s3",
            endpoint_url=bucket.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="test",
            aws_secret_access_key=bucket.secrets[0],
            region_name="us-east-1",
        )
        # What moto holds belongs to the process, not to the server.
        connection = HTTPConnection(host, port)
        connection.request("POST", "/moto-api/reset")
        connection.getresponse().read()
        bucket.client.create_bucket(Bucket=NAME)
        yield bucket
    finally:
        server.stop()
