"""Settings of the EKS cluster and of its system nodes."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

from pydantic import Field, model_validator

from eks_fsdp.spec.base import Strict
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.versions import KUBERNETES_VERSION

from .common import KmsKeyArn, Labels, PrincipalArn, refuse_reserved

_X86_TYPE = re.compile(r"^(?![a-z]+\d+g)[a-z]+\d+[a-z-]*\.[a-z0-9-]+$")
"""Graviton's families have a g after the generation: m7g, c6gn."""

LogType = Literal["api", "audit", "authenticator", "controllerManager", "scheduler"]
AccessPolicy = Literal["cluster-admin", "admin", "edit", "view"]


class ApiAccessSettings(Strict):
    """From where the Kubernetes API is reached beside the VPC itself."""

    public: bool = True
    """Whether there is a public endpoint. Without it, `pulumi up` must run inside the VPC or beside a VPN."""
    allowed_cidrs: list[str] = []
    """Ranges that the public endpoint answers."""
    caller_ip: Literal["auto", "none"] = "auto"
    """``auto``: the public endpoint also answers the address that this update comes from, and no longer the one before it."""
    caller_ip_url: str = Field(default="https://checkip.amazonaws.com", pattern=r"^https?://[^\s]+$")
    """Who tells that address: a page with nothing but the caller's address on it."""

    @model_validator(mode="after")
    def _somebody_can_reach_it(self) -> ApiAccessSettings:
        for cidr in self.allowed_cidrs:
            try:
                network = ipaddress.IPv4Network(cidr)
            except ValueError as error:
                raise ValueError(
                    f"allowed_cidrs: {cidr!r} is not an IPv4 network ({error}); accepted: 203.0.113.0/24"
                ) from None
            if network.prefixlen == 0:
                raise ValueError(
                    f"allowed_cidrs: {cidr!r} is the whole internet; accepted: your own ranges, or caller_ip 'auto'"
                )
        if self.public and not self.allowed_cidrs and self.caller_ip == "none":
            raise ValueError(
                "allowed_cidrs: [] and caller_ip 'none': the public endpoint would answer nobody; accepted: "
                "your ranges, caller_ip 'auto', or public: false"
            )
        return self


class AccessEntrySettings(Strict):
    """Who may do what in the cluster: one IAM principal."""

    principal_arn: PrincipalArn
    """ARN of an IAM role or user. An assumed role's session is not one: give the role."""
    policy: AccessPolicy = "view"
    """One of EKS' access policies."""
    namespaces: list[str] = []
    """Namespaces that the policy is limited to; none: the whole cluster."""


class AddonSettings(Strict):
    """EKS add-ons. vpc-cni, coredns, kube-proxy, eks-pod-identity-agent and aws-ebs-csi-driver are always installed."""

    versions: dict[str, str] = {}
    """Versions in place of the program's own pins, by the add-on's name."""
    prefix_delegation: bool = True
    """vpc-cni gives nodes /28 prefixes: many more pods than addresses on one interface. EFA-only interfaces take none."""
    node_monitoring: bool = True
    """eks-node-monitoring-agent: node repair acts on what it reports."""
    cloudwatch: bool = False
    """amazon-cloudwatch-observability: Container Insights and container logs. It brings a DCGM exporter of its own."""


class ClusterSettings(Strict):
    """The EKS cluster, or the one to use."""

    mode: Literal["create", "existing"] = "create"
    """``existing``: no network, control plane or node groups; `kubeconfig` or `name` is needed."""
    kubernetes_version: str = Field(default=KUBERNETES_VERSION, pattern=r"^1\.\d+$")
    """Minor version of the control plane."""
    kubeconfig: str | None = None
    """Path of the kubeconfig of an existing cluster."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")
    """Name of an existing EKS cluster, in place of a kubeconfig: the AWS CLI's ``eks get-token`` signs in."""
    api_access: ApiAccessSettings = ApiAccessSettings()
    """From where the Kubernetes API is reached."""
    access: dict[str, AccessEntrySettings] = {}
    """Who beside the creator may use the cluster, by a name of your own."""
    kms_key_arn: KmsKeyArn | None = None
    """Key that encrypts Kubernetes' secrets; None: EKS' own."""
    logs: list[LogType] = ["api", "audit", "authenticator"]
    """Logs of the control plane that are kept in CloudWatch Logs."""
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731] = 30
    """Days for which they are kept."""
    addons: AddonSettings = AddonSettings()
    """EKS add-ons."""

    @model_validator(mode="after")
    def _source_goes_with_existing(self) -> ClusterSettings:
        if self.mode == "existing" and (self.kubeconfig is None) == (self.name is None):
            both = "both are set" if self.name else "missing"
            raise ValueError(
                f"kubeconfig: {both}, and cluster.mode is 'existing'; accepted: the path of a kubeconfig, or name"
            )
        for setting in ("kubeconfig", "name"):
            if self.mode == "create" and getattr(self, setting):
                raise ValueError(f"{setting}: {getattr(self, setting)!r} goes with cluster.mode 'existing' only")
        return self


class SystemNodeSettings(Strict):
    """The managed node group for all that is not training."""

    instance_type: str = "m6i.xlarge"
    """Any EC2 type without GPUs."""
    desired: int = Field(default=2, ge=1, le=20)
    """Nodes."""
    labels: Labels = {}
    """Kubernetes labels beside the program's own."""

    @model_validator(mode="after")
    def _can_join(self) -> SystemNodeSettings:
        refuse_reserved(self.labels)
        if self.instance_type in INSTANCE_TYPES or not _X86_TYPE.match(self.instance_type):
            raise ValueError(
                f"instance_type: {self.instance_type!r}; accepted: an x86 type without GPUs, such as m6i.xlarge (the add-ons' and "
                "the operator's images are x86 here)"
            )
        return self
