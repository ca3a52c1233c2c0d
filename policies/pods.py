"""Rules of what runs in the cluster, wherever its pods are described: images, EFA, transport, load balancers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from eks_fsdp.spec.names import EFA_RESOURCE, GPU_RESOURCE, INSTANCE_TYPE_LABEL

from .network import EFA_KINDS, TEMPLATE, Problem
from .view import UNKNOWN, Resource, identifier, walk

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
EFA_TYPES = ("kubernetes:", TEMPLATE, NODE_GROUP)
"""Resources that `gpu_pods_ask_for_efa` looks at."""
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_DEFINITION = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"
TRANSPORT = "EKS_FSDP_TRANSPORT"


def pods(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every pod's spec in a Kubernetes object, with its path: of a workload, a PyTorchJob, or a template of any other kind."""
    if not resource.type.startswith("kubernetes:") or resource.type == _DEFINITION:
        return
    for path, value in walk(resource.props):
        if isinstance(value, Mapping) and isinstance(value.get("containers"), list) and not path.startswith("status"):
            yield path, value


def containers(path: str, pod: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every container of a pod with its path."""
    for kind in _CONTAINERS:
        for index, container in enumerate(pod.get(kind) or []):
            if isinstance(container, Mapping):
                yield f"{path}.{kind}[{index}]", container


def pinned_images(resource: Resource) -> Iterable[str]:
    """No image without a version, and no template by ``$Latest``: what runs tomorrow is what was tried today."""
    for place, pod in pods(resource):
        for path, container in containers(place, pod):
            image = container.get("image")
            if isinstance(image, str) and not _is_pinned(image):
                yield f"{path}.image {image!r} is no fixed version; accepted: a tag other than latest, or a digest"
    if resource.type == NODE_GROUP and str(resource.get("launchTemplate.version")) in ("$Latest", "$Default"):
        version = resource.get("launchTemplate.version")
        yield f"launchTemplate.version {version!r} is no fixed version; accepted: the template's own number"


def _is_pinned(image: str) -> bool:
    if "@sha256:" in image:
        return True
    tag = image.rpartition("/")[2].partition(":")[2]
    return bool(tag) and tag != "latest"


def gpu_pods_ask_for_efa(resources: Sequence[Resource]) -> Iterable[Problem]:
    """A pod that takes GPUs of a node with EFA asks for EFA too: without the request NCCL falls back to TCP, silently."""
    groups = _efa_groups(resources)
    for resource in resources:
        for path, pod in pods(resource):
            asked = {name for _, container in containers(path, pod) for name in _requests(container)}
            if GPU_RESOURCE not in asked or EFA_RESOURCE in asked:
                continue
            selector = pod.get("nodeSelector") or {}
            hit = next((name for name, labels in groups.items() if _may_run_on(selector, labels)), None)
            if hit is not None:
                yield (
                    resource.urn,
                    f"{path} asks for {GPU_RESOURCE} and not for {EFA_RESOURCE}, and may run on nodes of {hit}, which have "
                    "it: its traffic would go over TCP; accepted: a request for all of the node's EFA interfaces",
                )
            elif any(_environment(container).get("FI_PROVIDER") == "efa" for _, container in containers(path, pod)):
                yield (
                    resource.urn,
                    f"{path} sets FI_PROVIDER=efa and does not ask for {EFA_RESOURCE}; accepted: a request for it",
                )


def _efa_groups(resources: Sequence[Resource]) -> dict[str, Mapping[str, Any]]:
    """Labels of the node groups with EFA interfaces, by name; what is not a label of theirs may be one of a node."""
    found: dict[str, Mapping[str, Any]] = {}
    for group in (resource for resource in resources if resource.type == NODE_GROUP):
        sources, wanted = group.depends.get("launchTemplate", frozenset()), group.get("launchTemplate.id")
        for template in (resource for resource in resources if resource.type == TEMPLATE):
            used = identifier(template) == wanted if isinstance(wanted, str) else template.urn in sources
            if used and any(
                interface.get("interfaceType") in EFA_KINDS for interface in template.items("networkInterfaces")
            ):
                found[group.name] = {INSTANCE_TYPE_LABEL: template.get("instanceType"), **group.get("labels", {})}
    return found


def _may_run_on(selector: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    return all(
        key not in labels or UNKNOWN in (value, labels[key]) or labels[key] == value for key, value in selector.items()
    )


def _requests(container: Mapping[str, Any]) -> set[str]:
    resources = container.get("resources")
    if not isinstance(resources, Mapping):
        return set()
    parts = [resources.get(part) for part in ("requests", "limits")]
    return {
        name
        for part in parts
        if isinstance(part, Mapping)
        for name, value in part.items()
        if str(value) not in ("0", "0.0")
    }


def _environment(container: Mapping[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in container.get("env") or [] if isinstance(item, Mapping)}


def no_gloo(resource: Resource) -> Iterable[str]:
    """A job on real GPUs does not talk over gloo, which goes through the CPU: that is for simulated nodes."""
    for place, pod in pods(resource):
        for path, container in containers(place, pod):
            if _environment(container).get(TRANSPORT) == "gloo":
                yield f"{path}.env {TRANSPORT} is 'gloo', which is for simulated nodes; accepted: efa, tcp"


def no_load_balancer(resource: Resource) -> Iterable[str]:
    """Nothing in the cluster is put on the internet, and nothing makes AWS resources that a teardown would leave."""
    if resource.type == "kubernetes:core/v1:Service" and resource.get("spec.type") == "LoadBalancer":
        yield "spec.type is 'LoadBalancer'; accepted: ClusterIP, or its name in this rule's setting `allowed`"
    if resource.type.startswith("kubernetes:networking.k8s.io/") and resource.type.endswith(":Ingress"):
        yield "an Ingress may become a load balancer; accepted: none, or its name in this rule's setting `allowed`"


def object_name(resource: Resource) -> str:
    """``namespace/name`` of a Kubernetes object."""
    return f"{resource.get('metadata.namespace', 'default')}/{resource.get('metadata.name', '')}"
