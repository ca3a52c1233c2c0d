"""AWS as the launcher asks it: read-only requests with short timeouts, and refusals in words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

CONNECT_SECONDS = 5.0
READ_SECONDS = 20.0
ATTEMPTS = 3

_EXPIRED = (
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
)
_DENIED = (
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "UnauthorizedException",
    "AuthorizationError",
    "Client.UnauthorizedOperation",
)


class AwsError(Exception):
    """What AWS refused, or that it did not answer. ``code`` is the API's; empty: there was no answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def denied(self) -> bool:
        """Whether the credentials lack the right to ask this."""
        return self.code in _DENIED

    @property
    def no_credentials(self) -> bool:
        """Whether nothing at all can be asked with these credentials."""
        return self.code == "NoCredentials" or self.code in _EXPIRED


class Aws:
    """One region, with the credentials that boto3 finds. Safe to use from several threads."""

    def __init__(self, region: str, *, read_seconds: float = READ_SECONDS, attempts: int = ATTEMPTS) -> None:
        self.region = region
        self._read = read_seconds
        self._attempts = attempts
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str) -> Any:
        """A boto3 client. Raises `AwsError`."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._new(service)
            return self._clients[service]

    def _new(self, service: str) -> Any:
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=self._read,
            retries={"total_max_attempts": self._attempts, "mode": "standard"},
            max_pool_connections=16,
        )
        try:
            if self._session is None:
                # One for all clients: making one reads files and may ask a credential process.
                core = botocore.session.get_session()
                core.register_component("data_loader", _models())
                self._session = boto3.session.Session(botocore_session=core, region_name=self.region)
            return self._session.client(service, config=config)
        except BotoCoreError as error:
            raise as_aws_error(error) from None

    def ask(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One request, ``operation`` in boto3's spelling (``describe_cluster``). Raises `AwsError`."""
        client = self.client(service)
        return dict(_translated(lambda: getattr(client, operation)(**parameters)))

    def all(self, service: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        """The items under ``key`` over all pages. Raises `AwsError`."""
        client = self.client(service)

        def pages() -> Iterator[dict[str, Any]]:
            if client.can_paginate(operation):
                yield from client.get_paginator(operation).paginate(**parameters)
            else:
                yield getattr(client, operation)(**parameters)

        return list(_translated(lambda: [item for page in pages() for item in page.get(key) or []]))


@cache
def _models() -> Any:
    """The services' models, for all regions: EC2's alone takes half a second to read."""
    from botocore.loaders import create_loader

    return create_loader()


def _translated(request: Any) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        return request()
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise as_aws_error(error) from None


def as_aws_error(error: Exception) -> AwsError:
    """boto3's error in a user's words."""
    name, code = type(error).__name__, ""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = response.get("Error") or {}
        code, message = str(found.get("Code") or name), str(found.get("Message") or error)
        if code in _EXPIRED:
            return AwsError(
                code, f"AWS no longer takes these credentials ({code}): sign in again, such as `aws sso login`"
            )
        if code in _DENIED:
            return AwsError(code, f"not allowed: {message}")
        return AwsError(code, f"{code}: {message}")
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError") or (
        name.startswith(("SSO", "UnauthorizedSSO", "Login"))
    ):
        return AwsError(
            "NoCredentials", f"no AWS credentials ({error}): set AWS_PROFILE, or sign in, such as `aws sso login`"
        )
    if name == "ProfileNotFound":
        return AwsError("NoCredentials", f"{error}; AWS_PROFILE names a profile of ~/.aws/config")
    return AwsError("", f"AWS does not answer: {str(error).partition(chr(10))[0]}")
