"""The rendezvous' etcd client against servers that misbehave, which a real etcd cannot be made to do at will."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eks_fsdp.trainer.rendezvous.client import EtcdClient


class BreaksOff(BaseHTTPRequestHandler):
    """Ends the first answer in the middle, as an etcd that is killed does; the second one is whole."""

    answers = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).answers += 1
        body = json.dumps({"kvs": [{"value": "eA==", "mod_revision": "7"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.answers > 1 else body[:10])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


@pytest.fixture
def endpoint() -> Iterator[str]:
    BreaksOff.answers = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), BreaksOff) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_answer_that_breaks_off_is_asked_for_again(endpoint: str) -> None:
    client = EtcdClient(endpoint, patience=60)
    found = client.get("/a")
    client.close()
    assert found is not None
    assert (found.value, found.mod_revision) == (b"x", 7)
    assert BreaksOff.answers == 2
