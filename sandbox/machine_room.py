"""Client of the machine room: HTTP and JSON over its unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any, Protocol


class MachineRoomError(RuntimeError):
    """The machine room refused, did not answer, or has ended."""

    def __init__(self, message: str, status: int = 0) -> None:
        """``status``: the HTTP status of a refusal; 0 where there was no answer."""
        super().__init__(message)
        self.status = status


class MachineRoom(Protocol):
    """What the account asks of the machine room."""

    def create_control_plane(self, name: str, version: str, host: str, port: int) -> dict[str, Any]:
        """``{"name", "ca_pem", "admin_token"}`` once the API server answers."""

    def delete_control_plane(self, name: str) -> None:
        """Stop every pod, node and process of the control plane."""

    def put_node_group(self, group: str, spec: dict[str, Any]) -> None:
        """Make the nodes of ``group`` what ``spec`` says."""

    def delete_node_group(self, group: str) -> None:
        """Remove the nodes of ``group`` with their pods."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("machine-room", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class SocketMachineRoom:
    """The machine room behind a unix socket. Safe for threads: each request has its own connection."""

    def __init__(self, path: Path, timeout: float = 90.0) -> None:
        self.path = path
        self.timeout = timeout

    def request(self, method: str, url: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        """The decoded answer. Raises `MachineRoomError` with the answer's own reason where that is not a success."""
        connection = _UnixConnection(self.path, timeout or self.timeout)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, url, payload, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        except TimeoutError:
            waited = timeout or self.timeout
            raise MachineRoomError(f"the machine room did not answer {method} {url} within {waited:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise MachineRoomError(f"the machine room is not there ({method} {url}: {error})") from None
        finally:
            connection.close()
        try:
            value = json.loads(text) if text else None
        except ValueError:
            value = {"error": text.strip()[:500]}
        if answer.status >= 300:
            reason = value.get("error", text) if isinstance(value, dict) else text
            raise MachineRoomError(f"the machine room refused {method} {url}: {reason}", answer.status)
        return value

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """``{"control_plane", "nodes", "failure", "pods", "processes"}``; failure: what ended by itself, or empty."""
        return dict(self.request("GET", "/status", timeout=timeout))

    def create_control_plane(self, name: str, version: str, host: str, port: int) -> dict[str, Any]:
        """See `MachineRoom`."""
        body = {"name": name, "version": version, "external_host": host, "external_port": port}
        return dict(self.request("POST", "/control-planes", body))

    def delete_control_plane(self, name: str) -> None:
        """See `MachineRoom`."""
        self.request("DELETE", f"/control-planes/{name}")

    def put_node_group(self, group: str, spec: dict[str, Any]) -> None:
        """See `MachineRoom`."""
        self.request("PUT", f"/node-groups/{group}", spec)

    def delete_node_group(self, group: str) -> None:
        """See `MachineRoom`."""
        self.request("DELETE", f"/node-groups/{group}")
