"""The official client against a small API server of our own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from eks_fsdp.launcher.errors import UserError
from eks_fsdp.launcher.kube import ApiError, Cluster, load_kubeconfig, parse_kubeconfig
from eks_fsdp.launcher.logs import Cursor, read_log

from .launcher_samples import pod


class Api(BaseHTTPRequestHandler):
    """A few paths of the Kubernetes API."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, list[str]], str]] = []

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.seen.append(("GET", url.path, parse_qs(url.query), self.headers.get("Authorization", "")))
        if url.path.endswith("/log"):
            self._log()
        elif url.path.endswith("/pods"):
            self._json(200, {"items": [pod()]})
        elif url.path == "/api/v1/nodes/forbidden":
            self._json(403, {"message": "nodes is forbidden"})
        else:
            self._json(404, {"message": "not found"})

    def do_DELETE(self) -> None:
        self.seen.append(("DELETE", urlsplit(self.path).path, {}, ""))
        self._json(200 if self.path.split("?")[0].endswith("/job") else 404, {"status": "Success"})

    def _log(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for text in ("2026-01-02T03:04:01Z one\n2026-01-02T03:04", ":02Z two\n"):
            self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
            self.wfile.flush()
            time.sleep(0.05)
        if "silent" in self.path:
            time.sleep(1)
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


def kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    Api.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield Cluster(kubeconfig(server.server_port))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_requests_carry_token_and_selector(cluster: Cluster) -> None:
    (found,) = cluster.pods("training", "job")
    assert found["metadata"]["name"] == "job-worker-0"
    assert Api.seen == [
        (
            "GET",
            "/api/v1/namespaces/training/pods",
            {"labelSelector": ["training.kubeflow.org/job-name=job"]},
            "Bearer secret",
        )
    ]


def test_what_is_not_there_is_none_and_what_is_forbidden_is_unknown(cluster: Cluster) -> None:
    assert cluster.pod("training", "nobody") is None
    assert cluster.jobs("training") == []
    assert cluster.node_labels("forbidden") == {}
    assert cluster.delete_job("training", "job") is True
    assert cluster.delete_job("training", "other") is False


def test_logs_come_line_by_line_from_chunks_of_any_size(cluster: Cluster) -> None:
    assert list(read_log(cluster, "training", "pod", Cursor(), follow=True)) == ["one", "two"]
    assert Api.seen[0][2] == {"timestamps": ["true"], "container": ["pytorch"], "follow": ["true"]}


def test_a_silent_connection_is_given_up(cluster: Cluster) -> None:
    chunks: list[bytes] = []
    with pytest.raises(ApiError) as caught:
        chunks.extend(cluster.stream("/api/v1/namespaces/n/pods/silent/log", {}, silence=0.3))
    assert caught.value.status == 0
    assert b"two" in b"".join(chunks)


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(ApiError, match=r"http://127\.0\.0\.1:1 does not answer"):
        Cluster(kubeconfig(1)).nodes()


def test_kubeconfigs_are_checked(tmp_path: Path) -> None:
    assert parse_kubeconfig(json.dumps(kubeconfig(1)), "output")["kind"] == "Config"
    with pytest.raises(UserError, match="output: not a kubeconfig"):
        parse_kubeconfig("just text", "output")
    with pytest.raises(UserError, match="No such file"):
        load_kubeconfig(tmp_path / "none")
    with pytest.raises(UserError, match="not a usable kubeconfig"):
        Cluster({"clusters": []}, source="output")
