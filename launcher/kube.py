"""The Kubernetes API as the launcher uses it: plain JSON objects, and a limit on every request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eks_fsdp.spec.names import OPERATOR_JOB_NAME_LABEL

from .errors import UserError

Object = dict[str, Any]
"""A Kubernetes object as the API's JSON says it."""

CONNECT_SECONDS = 5.0
READ_SECONDS = 20.0
FOLLOW_SILENCE_SECONDS = 30.0
"""A followed log that is silent for this long is connected to again: a half-open connection looks the same."""
UNREACHABLE_SECONDS = 120.0
"""For how long the API server may be away before a wait gives up."""


class ApiError(Exception):
    """The API server's refusal. `status` is the HTTP status; 0: there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def passes(self) -> bool:
        """Whether the same request may well be answered later: no answer, or the server's own trouble."""
        return self.status in (0, 429) or self.status >= 500


class Cluster:
    """One cluster. Methods raise `ApiError`."""

    def __init__(self, kubeconfig: Mapping[str, Any], *, source: str = "kubeconfig") -> None:
        from kubernetes.config import new_client_from_config_dict
        from kubernetes.config.config_exception import ConfigException

        try:
            self._api = new_client_from_config_dict(  # type: ignore[no-untyped-call]
                dict(kubeconfig), persist_config=False
            )
        except ConfigException as error:
            raise UserError(f"{source}: not a usable kubeconfig: {error}") from None
        # Each followed pod keeps a connection; retries are the callers' own, so that limits hold.
        self._api.configuration.connection_pool_maxsize = 64
        self._api.configuration.retries = False
        self._api.rest_client = type(self._api.rest_client)(self._api.configuration)
        self.source = source

    @classmethod
    def from_file(cls, path: str | Path) -> Cluster:
        """The current context of a kubeconfig file. Raises `UserError` where it cannot be read."""
        return cls(load_kubeconfig(path), source=str(path))

    def _open(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None, read: float, content: str = ""
    ) -> Any:
        import urllib3.exceptions
        from kubernetes.client.exceptions import ApiException

        request = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json, */*"} | ({"Content-Type": content} if content else {}),
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._api.call_api(*request, _request_timeout=(CONNECT_SECONDS, read)).response
            if not 200 <= response.status <= 299:
                raise ApiError(response.status, _message(response.data) or str(response.reason))
            return response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"{self._api.configuration.host} does not answer: {_short(error)}") from None
        except ApiException as error:
            raise ApiError(error.status or 0, str(error.reason)) from None

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "",
    ) -> Object:
        """One request and its JSON answer. ``content``: the body's media type, where it is not plain JSON."""
        import urllib3.exceptions

        response = self._open(method, path, query or {}, body, READ_SECONDS, content)
        try:
            value = json.loads(response.data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(0, f"{method} {path}: the answer broke off: {_short(error)}") from None
        finally:
            response.release_conn()
        return value if isinstance(value, dict) else {}

    def stream(
        self, path: str, query: Mapping[str, str], *, silence: float = FOLLOW_SILENCE_SECONDS
    ) -> Iterator[bytes]:
        """Chunks of the answer as they come, until it ends. A silence of ``silence`` seconds raises `ApiError` 0."""
        import urllib3.exceptions

        response = self._open("GET", path, query, None, silence)
        try:
            while chunk := response.read1(65_536):
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"{path}: {_short(error)}") from None
        finally:
            response.close()

    def execute(self, namespace: str, pod: str, command: Sequence[str], limit: float) -> tuple[int | None, str]:
        """Run a command in a pod's only container: its exit code, and what it wrote, stdout and stderr together.

        None: it still ran after ``limit`` seconds, or the connection broke off.
        """
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream.ws_client import websocket_call

        query = [("stdout", "true"), ("stderr", "true"), *(("command", part) for part in command)]
        _, url, headers, *_ = self._api.param_serialize(
            "GET",
            f"/api/v1/namespaces/{namespace}/pods/{pod}/exec",
            query_params=query,
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
        )
        try:
            socket = websocket_call(  # type: ignore[no-untyped-call]
                self._api.configuration, "GET", url, headers=headers, _preload_content=False, capture_all=True
            )
        except ApiException as error:
            raise ApiError(0, f"exec in pod {pod}: {error.reason}") from None
        try:
            socket.run_forever(timeout=limit)
            # Before the output: reading that forgets the channel that tells how the command ended.
            code = None if socket.is_open() else _exit_code(socket)
            return code, str(socket.read_all())
        except Exception as error:  # noqa: BLE001
            # websocket-client's and the socket's own: the pod is gone, or the API server.
            return None, f"exec in pod {pod} broke off: {error}"
        finally:
            socket.close()

    def create(self, path: str, manifest: Object) -> Object:
        """Create an object in the list at ``path``."""
        return self.request("POST", path, body=manifest)

    def merge(self, path: str, change: Object) -> Object:
        """Change fields of an object, by a JSON merge patch."""
        return self.request("PATCH", path, body=change, content="application/merge-patch+json")

    def delete(self, path: str) -> bool:
        """Delete an object. False where there was none."""
        return self._delete(path)

    def items(self, path: str, **query: str) -> list[Object]:
        """The objects of a list."""
        found = self.request("GET", path, query).get("items")
        return found if isinstance(found, list) else []

    def find(self, path: str) -> Object | None:
        """One object, or None where there is none."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def pods(self, namespace: str, job: str) -> list[Object]:
        """The pods of one PyTorchJob."""
        return self.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"{OPERATOR_JOB_NAME_LABEL}={job}")

    def pod(self, namespace: str, name: str) -> Object | None:
        """One pod."""
        return self.find(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def events(self, namespace: str, *names: str) -> list[Object]:
        """Events about the named objects, oldest first."""
        found: list[Object] = []
        for name in names:
            found += self.items(f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.name={name}")
        return sorted(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))

    def job(self, namespace: str, name: str) -> Object | None:
        """One PyTorchJob."""
        return self.find(f"{_jobs(namespace)}/{name}")

    def jobs(self, namespace: str, selector: str = "") -> list[Object]:
        """PyTorchJobs, oldest first; none where the cluster does not know the kind."""
        try:
            found = self.items(_jobs(namespace), **({"labelSelector": selector} if selector else {}))
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return sorted(found, key=lambda job: str(job["metadata"].get("creationTimestamp", "")))

    def workload(self, namespace: str, job: Object) -> Object | None:
        """The queue's view of a PyTorchJob; None where there is none, or it may not be read."""
        selector = f"kueue.x-k8s.io/job-uid={job['metadata'].get('uid', '')}"
        try:
            found = self.items(f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads", labelSelector=selector)
        except ApiError as error:
            if error.status in (403, 404):
                return None
            raise
        return found[-1] if found else None

    def delete_job(self, namespace: str, name: str) -> bool:
        """Delete a PyTorchJob, its pods, and its configuration of the same name. False where there was no job."""
        found = self._delete(f"{_jobs(namespace)}/{name}")
        self._delete(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        return found

    def _delete(self, path: str) -> bool:
        try:
            self.request("DELETE", path, {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def nodes(self) -> list[Object]:
        """All nodes."""
        return self.items("/api/v1/nodes")

    def node_labels(self, name: str) -> dict[str, str]:
        """Labels of a node; empty where it is gone or may not be read (rights in one namespace only)."""
        try:
            node = self.find(f"/api/v1/nodes/{name}")
        except ApiError as error:
            if error.status in (401, 403):
                return {}
            raise
        return dict((node or {}).get("metadata", {}).get("labels") or {})


def load_kubeconfig(path: str | Path) -> dict[str, Any]:
    """A kubeconfig file's content. Raises `UserError`."""
    try:
        text = Path(path).expanduser().read_text()
    except OSError as error:
        raise UserError(f"kubeconfig {path}: {error.strerror}") from None
    return parse_kubeconfig(text, str(path))


def parse_kubeconfig(value: object, source: str) -> dict[str, Any]:
    """A kubeconfig from an object, JSON or YAML. Raises `UserError`."""
    import yaml

    if isinstance(value, str):
        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"{source}: neither JSON nor YAML, so not a kubeconfig") from None
    if not isinstance(value, dict) or "clusters" not in value:
        raise UserError(f"{source}: not a kubeconfig: it has no 'clusters'")
    return value


def kubeconfig_from_environment() -> str | None:
    """The first existing file of KUBECONFIG."""
    for name in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        if name and Path(name).exists():
            return name
    return None


def _exit_code(socket: Any) -> int | None:
    """Of an exec whose connection is closed."""
    try:
        return int(socket.returncode)
    except (TypeError, ValueError, KeyError, IndexError):
        return None


def _jobs(namespace: str) -> str:
    return f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs"


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data).get("message", ""))
    except (ValueError, AttributeError):
        return data.decode(errors="replace")[:300]


def _short(error: Exception) -> str:
    return str(error).split("(Caused by", 1)[0].rsplit(">: ", 1)[-1].strip() or type(error).__name__
