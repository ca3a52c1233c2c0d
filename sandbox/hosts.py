"""Names of Services and their pods as the text of /etc/hosts: what the cluster's DNS is in production.

A Service's name stands for its ready endpoints themselves: there is no proxy behind cluster addresses, so a Service whose
port differs from its pods' port is reached at the pods' port.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]
DOMAIN = "cluster.local"
SERVICE_OF_SLICE = "kubernetes.io/service-name"
ServiceKey = tuple[str, str]
"""Namespace and name."""


def service_names(name: str, namespace: str, home: str) -> list[str]:
    """The names that a pod in namespace ``home`` may use for a Service (or ``pod.service``)."""
    full = [f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.{DOMAIN}"]
    return [name, *full] if namespace == home else full


def ready_endpoints(slices: Iterable[Object]) -> dict[ServiceKey, list[tuple[str, str]]]:
    """Per Service the (address, host name or "") of each ready endpoint, sorted."""
    found: dict[ServiceKey, set[tuple[str, str]]] = {}
    for item in slices:
        service = item["metadata"].get("labels", {}).get(SERVICE_OF_SLICE)
        if not service or item.get("addressType") != "IPv4":
            continue
        key = (item["metadata"]["namespace"], service)
        for endpoint in item.get("endpoints") or []:
            if endpoint.get("conditions", {}).get("ready", True):
                found.setdefault(key, set()).add((endpoint["addresses"][0], endpoint.get("hostname", "")))
    return {key: sorted(endpoints) for key, endpoints in found.items()}


def service_lines(
    home: str, endpoints: dict[ServiceKey, list[tuple[str, str]]], headless: set[ServiceKey]
) -> list[str]:
    """Lines for a pod in namespace ``home``: every address of a headless Service, one of any other, and named pods."""
    lines = []
    for key in sorted(endpoints):
        namespace, service = key
        reachable = endpoints[key] if key in headless else endpoints[key][:1]
        for address in dict.fromkeys(address for address, _ in reachable):
            lines.append(" ".join([address, *service_names(service, namespace, home)]))
        for address, name in endpoints[key]:
            if name:
                lines.append(" ".join([address, *service_names(f"{name}.{service}", namespace, home)]))
    return lines


def hosts_file(address: str, own_names: Iterable[str], aliases: Iterable[Object], services: Iterable[str]) -> str:
    """The whole file. ``aliases`` are a pod's ``hostAliases``."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback", " ".join([address, *own_names])]
    lines += [" ".join([alias["ip"], *alias.get("hostnames", [])]) for alias in aliases]
    return "\n".join([*lines, *services]) + "\n"


def own_names(pod: Object) -> tuple[str, list[str]]:
    """A pod's host name, and all the names that stand for its own address."""
    spec = pod["spec"]
    name = str(spec.get("hostname") or pod["metadata"]["name"])[:63]
    subdomain = spec.get("subdomain")
    if subdomain:
        return name, [f"{name}.{subdomain}.{pod['metadata']['namespace']}.svc.{DOMAIN}", name]
    return name, [name]
