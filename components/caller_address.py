"""From which address this update comes: the public endpoint of the Kubernetes API answers it, and no longer the one before it.

No component asks; the program does, before it declares anything.
"""

from __future__ import annotations

import ipaddress
import urllib.request
from urllib.error import URLError

import pulumi

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.settings import Settings

TRIES = 3
TIMEOUT_S = 5.0
LONGEST_ANSWER = 64
STANDS_IN = "192.0.2.1/32"
"""An address that nobody has (RFC 5737), for a preview that could not ask: it shows that there will be one."""


class NoAddress(Exception):
    """Nobody could tell the caller's address; the message says why."""


def caller_address(url: str) -> str:
    """The caller's IPv4 address as the page at ``url`` tells it. Raises `NoAddress`."""
    reason = ""
    for _ in range(TRIES):
        try:
            # Through the proxy of the environment, where there is one: the API is then reached through it too.
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return _checked(answer.read(LONGEST_ANSWER).decode("ascii", "replace").strip())
        except URLError as error:
            reason = str(error.reason)
        except (OSError, ValueError) as error:
            reason = str(error)
    raise NoAddress(reason)


def _checked(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise NoAddress(f"the answer is no address: {text!r}") from None
    if not isinstance(address, ipaddress.IPv4Address):
        raise NoAddress(f"the answer is {text}, and EKS takes IPv4 ranges for the endpoint of an IPv4 cluster")
    if not address.is_global:
        raise NoAddress(f"the answer is {text}, which is no address of the internet")
    return text


def allowed_cidrs(settings: Settings, *, preview: bool) -> list[str]:
    """The ranges that the public endpoint answers: those of the settings, and the caller's own address.

    Where it cannot be learnt, a preview warns and goes on without it. Raises `SettingsError` in an update: it would end
    outside of the cluster that it has just made.
    """
    access = settings.cluster.api_access
    listed = list(access.allowed_cidrs)
    if settings.cluster.mode == "existing" or not access.public or access.caller_ip == "none":
        return listed
    try:
        own = f"{caller_address(access.caller_ip_url)}/32"
    except NoAddress as error:
        problem = (
            f"cluster.api_access.caller_ip: 'auto', and {access.caller_ip_url} does not tell the caller's address ({error}); "
            "accepted: another page as cluster.api_access.caller_ip_url, or caller_ip 'none' with your ranges in "
            "cluster.api_access.allowed_cidrs"
        )
        if not preview:
            raise SettingsError(problem) from None
        pulumi.log.warn(f"{problem}. This preview goes on without it.")
        return listed or [STANDS_IN]
    return [*listed, *([] if own in listed else [own])]
