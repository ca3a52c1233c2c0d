"""What EKS' Pod Identity agent and webhook do for a pod: they give it rights in AWS where its service account has some.

AWS is the stand-in account, which pods reach at a port of the bridge. It asks nobody for credentials, but SDKs will not
speak without some.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import aiohttp

from eks_fsdp.sandbox.layout import ACCESS_KEY, REGION, SECRET_KEY
from eks_fsdp.sandbox.network import GATEWAY

AWS_PORT = 4566
"""Of the bridge's address: leads to the account."""
AWS_SOCKET = "aws.sock"
"""In the sandbox's run folder: the daemon's end of the way."""
ANSWER_SECONDS = 5.0
# The account tells services apart by the scope of a signature, and checks none.
_AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/{REGION}/eks/aws4_request, SignedHeaders=host, Signature=0"
)
log = logging.getLogger("pod-identity")


def credentials() -> dict[str, str]:
    """The environment of a pod that has rights in AWS."""
    return {
        "AWS_ENDPOINT_URL": f"http://{GATEWAY}:{AWS_PORT}",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }


class Identities:
    """Asks the account, by a unix socket, which service accounts of the cluster have rights."""

    def __init__(self, socket: Path, cluster: Callable[[], str | None]) -> None:
        """``cluster`` gives the control plane's name in EKS."""
        self._socket = socket
        self._cluster = cluster

    async def environment(self, namespace: str, account: str) -> dict[str, str]:
        """`credentials` for pods of ``account``, or nothing where it has no association, or there is no account."""
        cluster = self._cluster()
        if cluster is None or not self._socket.exists():
            return {}
        url = f"http://account/clusters/{cluster}/pod-identity-associations"
        wanted = {"namespace": namespace, "serviceAccount": account}
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(str(self._socket)),
                    timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
                    headers={"Authorization": _AUTHORIZATION},
                ) as session,
                session.get(url, params=wanted) as answer,
            ):
                found = (await answer.json(content_type=None))["associations"] if answer.status == 200 else []
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # As where the real webhook does not answer: the pod starts without.
            log.warning("pod identity of %s/%s: %s", namespace, account, error)
            return {}
        return credentials() if found else {}
