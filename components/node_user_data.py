"""User data of GPU nodes: nodeadm's configuration, and what must be set before the kubelet starts, as one MIME document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from eks_fsdp.spec.settings import GpuNodeGroupSettings

BOUNDARY = "eks-fsdp-boundary"
HUGEPAGES_FILE = "/etc/sysctl.d/90-eks-fsdp-hugepages.conf"
_STRATEGIES = {"raid0": "RAID0", "mount": "Mount"}


@dataclass(frozen=True, kw_only=True)
class ClusterAddress:
    """What a node must know to join a cluster. EKS tells it to nodes with an image of its own, and to no others."""

    name: str
    endpoint: str
    """``https://...`` of the Kubernetes API."""
    certificate_authority: str
    """Base64 of the API's CA certificate."""
    service_cidr: str
    """IPv4 range of the cluster's Services."""


def node_config(
    group: GpuNodeGroupSettings,
    *,
    max_pods: int | None = None,
    cluster: ClusterAddress | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[str] = (),
) -> dict[str, Any]:
    """The ``spec`` of nodeadm's NodeConfig, as little of it as possible: EKS merges in the rest.

    ``cluster``: for an image of the user's own the whole of it is here, and the kubelet itself sets labels and taints
    (``key=value:Effect``), so that no pod gets onto a node before they are there.
    """
    spec: dict[str, Any] = {}
    if cluster is not None:
        spec["cluster"] = {
            "name": cluster.name,
            "apiServerEndpoint": cluster.endpoint,
            "certificateAuthority": cluster.certificate_authority,
            "cidr": cluster.service_cidr,
        }
    kubelet: dict[str, Any] = {}
    flags: list[str] = []
    if max_pods is not None:
        kubelet["config"] = {"maxPods": max_pods}
        # EKS adds a configuration with a limit of its own. Of two, nodeadm takes the later one; a flag is above both.
        flags.append(f"--max-pods={max_pods}")
    if cluster is not None:
        pairs = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        flags += [f"--node-labels={pairs}", f"--register-with-taints={','.join(taints)}"]
    if flags:
        spec["kubelet"] = {**kubelet, "flags": flags}
    if group.nvme != "none" and group.instance.nvme_gb:
        spec["instance"] = {"localStorage": {"strategy": _STRATEGIES[group.nvme]}}
    return spec


def hugepages_script(pages: int) -> str:
    """A script that sets aside ``pages`` huge pages of 2 MiB. It runs before the kubelet counts them."""
    return "\n".join(
        [
            "#!/bin/bash",
            "set -euo pipefail",
            f'echo "vm.nr_hugepages = {pages}" > {HUGEPAGES_FILE}',
            f"sysctl --load {HUGEPAGES_FILE}",
            "",
        ]
    )


def user_data(config: Mapping[str, Any], hugepages: int | None = None) -> str | None:
    """The MIME document of a NodeConfig's ``spec`` and of huge pages; None where there is nothing to say."""
    parts: list[tuple[str, str]] = []
    if hugepages is not None:
        parts.append(("text/x-shellscript; charset=us-ascii", hugepages_script(hugepages)))
    if config:
        document = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": config}
        parts.append(("application/node.eks.aws", yaml.safe_dump(document, sort_keys=False, width=4096)))
    if not parts:
        return None
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{BOUNDARY}"', ""]
    for kind, content in parts:
        lines += [f"--{BOUNDARY}", f"Content-Type: {kind}", "", content]
    return "\n".join([*lines, f"--{BOUNDARY}--", ""])
