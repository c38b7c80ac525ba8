"""An object store in this process that pyarrow's S3 file system talks to: puts are atomic, there are no folders, nothing is renamed."""

from __future__ import annotations

import hashlib
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class ObjectStore(ThreadingHTTPServer):
    """objects: by bucket and key.  broken: it answers every request that writes with an error that nobody tries again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.broken = False

    def url(self, path: str) -> str:
        """Of a folder in a bucket."""
        host = f"127.0.0.1%3A{self.server_port}"
        return f"s3://key:secret@{path}?scheme=http&endpoint_override={host}&region=here"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    thread = threading.Thread(target=store.serve_forever, args=(0.01,), daemon=True)  # how often it looks whether it is to end
    thread.start()
    try:
        yield store
    finally:
        store.shutdown()
        thread.join()
        store.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body behind its headers would wait 40 ms for the client's word that it has those
    server: ObjectStore

    def log_message(self, *_: object) -> None:
        """Nothing."""

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    @property
    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return _unchunked(data) if "aws-chunked" in self.headers.get("Content-Encoding", "") else data

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _xml(self, text: str, code: int = 200) -> None:
        self._answer(code, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), Content_Type="application/xml")

    def _missing(self) -> None:
        self._xml("<Error><Code>NoSuchKey</Code><Message>not there</Message></Error>", 404)

    def _refused(self) -> None:
        self._xml("<Error><Code>AccessDenied</Code><Message>refused</Message></Error>", 403)

    def _about(self, data: bytes) -> dict[str, str]:
        return {"ETag": f'"{hashlib.md5(data).hexdigest()}"', "Last_Modified": formatdate(usegmt=True)}

    def do_HEAD(self) -> None:
        key = self._key
        if "/" not in key.rstrip("/"):
            self._answer(200)
        elif (data := self.server.objects.get(key)) is None:
            self._answer(404)
        else:
            self._answer(200, Content_Length=str(len(data)), **self._about(data))

    def do_GET(self) -> None:
        key, query = self._key, self._query
        if "list-type" in query:
            self._list(key.rstrip("/"), query.get("prefix", ""), query.get("delimiter", ""))
        elif (data := self.server.objects.get(key)) is None:
            self._missing()
        elif found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
            about = {"Content_Range": f"bytes {first}-{last}/{len(data)}", **self._about(data)}
            self._answer(206, data[first : last + 1], **about)
        else:
            self._answer(200, data, **self._about(data))

    def _list(self, bucket: str, prefix: str, delimiter: str) -> None:
        names = sorted(key.removeprefix(f"{bucket}/") for key in self.server.objects if key.startswith(f"{bucket}/{prefix}"))
        below, items = dict[str, None](), list[str]()
        for name in names:
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                below[prefix + rest.partition(delimiter)[0] + delimiter] = None
            else:
                size = len(self.server.objects[f"{bucket}/{name}"])
                when = "2026-01-01T00:00:00.000Z"
                items.append(f"<Contents><Key>{escape(name)}</Key><LastModified>{when}</LastModified><Size>{size}</Size></Contents>")
        folders = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in below)
        count = len(items) + len(below)
        about = f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount><IsTruncated>false</IsTruncated>"
        self._xml(f"<ListBucketResult>{about}{''.join(items)}{folders}</ListBucketResult>")

    def do_PUT(self) -> None:
        key, query, data = self._key, self._query, self._body()
        if self.server.broken:
            self._refused()
        elif "uploadId" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = data
            self._answer(200, **self._about(data))
        else:
            if "/" in key:
                self.server.objects[key] = data
            self._answer(200, **self._about(data))

    def do_POST(self) -> None:
        key, query, data = self._key, self._query, self._body()
        if self.server.broken:
            self._refused()
        elif "uploads" in query:
            name = uuid.uuid4().hex
            self.server.uploads[name] = {}
            self._xml(f"<InitiateMultipartUploadResult><Key>{escape(key)}</Key><UploadId>{name}</UploadId></InitiateMultipartUploadResult>")
        elif "uploadId" in query:
            parts = self.server.uploads.pop(query["uploadId"])
            self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
            self._xml('<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>')
        else:  # many are deleted
            for name in re.findall(rb"<Key>(.*?)</Key>", data):
                self.server.objects.pop(f"{key.rstrip('/')}/{name.decode()}", None)
            self._xml("<DeleteResult></DeleteResult>")

    def do_DELETE(self) -> None:
        self.server.objects.pop(self._key, None)
        self._answer(204)


def _unchunked(data: bytes) -> bytes:
    """Amazon's own chunks, without the digest behind them."""
    found, at = b"", 0
    while size := int(data[at : (end := data.index(b"\r\n", at))].split(b";")[0], 16):
        found, at = found + data[end + 2 : end + 2 + size], end + 4 + size
    return found
