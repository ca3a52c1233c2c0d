"""Measurement: DCGM exporter on GPU nodes, Prometheus, and Grafana with one board that shows a run."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from eks_fsdp.spec.names import (
    ETCD_SERVICE,
    JOB_LABEL,
    RUN_LABEL,
    SYSTEM_NAMESPACE,
    TRAINER_METRICS,
)
from eks_fsdp.spec.settings import TaintSettings
from eks_fsdp.spec.versions import DCGM_EXPORTER_IMAGE, GRAFANA_IMAGE, PROMETHEUS_IMAGE

from .job_placement import tolerations
from .objects import (
    GPU_NODES,
    LOCKED_DOWN,
    Manifest,
    config_map,
    declare,
    digest,
    host_path,
    http_probe,
    metadata,
    resources,
    service,
    workload,
)

DCGM_PORT, PROMETHEUS_PORT, GRAFANA_PORT = 9400, 9090, 3000
SCRAPE_INTERVAL = "15s"
RETENTION = "15d"
_POD_RESOURCES = "/var/lib/kubelet/pod-resources"

DCGM_COUNTERS: dict[str, tuple[str, str]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "Share of time in which a kernel ran (percent)"),
    "DCGM_FI_PROF_SM_ACTIVE": ("gauge", "Share of cycles with a warp on a multiprocessor"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gauge", "Share of cycles in which tensor cores were busy"),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gauge", "Share of cycles in which memory was busy"),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Memory in use in MiB"),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Memory free in MiB"),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw in W"),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "Temperature in degrees Celsius"),
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "Clock of the multiprocessors in MHz"),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Last XID error"),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": ("counter", "Bytes over all NVLinks"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", "Rows remapped for uncorrectable errors"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", "Whether remapping of rows has failed"),
}
"""What is exported: DCGM's field, Prometheus type, help text. The exporter ends on a comma within any of them."""


def dcgm_counters_csv() -> str:
    """The exporter's list of fields."""
    return "".join(f"{name}, {kind}, {text}\n" for name, (kind, text) in DCGM_COUNTERS.items())


def dcgm_exporter(taints: Sequence[TaintSettings] = ()) -> list[Manifest]:
    """ConfigMap and DaemonSet of the exporter, also on nodes with ``taints``."""
    counters = dcgm_counters_csv()
    container = {
        "name": "dcgm-exporter",
        "image": DCGM_EXPORTER_IMAGE,
        "args": ["-f", "/etc/dcgm-exporter/counters.csv"],
        "env": [
            {"name": "DCGM_EXPORTER_LISTEN", "value": f":{DCGM_PORT}"},
            {"name": "DCGM_EXPORTER_KUBERNETES", "value": "true"},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "ports": [{"name": "metrics", "containerPort": DCGM_PORT}],
        "readinessProbe": http_probe("/health", DCGM_PORT, period=5),
        # Profiling counters (DCGM_FI_PROF_*) are refused without it.
        "securityContext": {"runAsUser": 0, "capabilities": {"add": ["SYS_ADMIN"]}},
        # With eight GPUs the exporter's usual 512 MiB are not enough.
        "resources": resources("100m", "1Gi"),
        "volumeMounts": [
            {"name": "counters", "mountPath": "/etc/dcgm-exporter"},
            {"name": "pod-resources", "mountPath": _POD_RESOURCES, "readOnly": True},
        ],
    }
    pod: Manifest = {
        "nodeSelector": GPU_NODES,
        "tolerations": tolerations(taints),
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [
            {"name": "counters", "configMap": {"name": "dcgm-exporter"}},
            host_path("pod-resources", _POD_RESOURCES),
        ],
    }
    return [
        config_map("dcgm-exporter", "dcgm-exporter", {"counters.csv": counters}),
        workload("DaemonSet", "dcgm-exporter", pod, annotations={"eksfsdp/config": digest(counters)}),
    ]


def scrape_config() -> dict[str, Any]:
    """Prometheus' configuration. Pods are found through the API server, and by the name of their port."""
    return {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
        "scrape_configs": [
            {"job_name": "prometheus", "static_configs": [{"targets": [f"localhost:{PROMETHEUS_PORT}"]}]},
            _pods("dcgm-exporter", "metrics", [SYSTEM_NAMESPACE], app="dcgm-exporter"),
            _pods("etcd", "client", [SYSTEM_NAMESPACE], app=ETCD_SERVICE),
            # In every namespace: jobs are wherever their team's is. Rank 0 alone answers.
            _pods("trainer", "metrics", None, having=JOB_LABEL, interval="5s"),
        ],
    }


def _pods(
    job: str,
    port: str,
    namespaces: Sequence[str] | None,
    *,
    app: str | None = None,
    having: str | None = None,
    interval: str | None = None,
) -> dict[str, Any]:
    def meta(label: str) -> str:
        return "__meta_kubernetes_pod_label_" + "".join(c if c.isalnum() else "_" for c in label)

    kept = (
        {"source_labels": [meta("app.kubernetes.io/name")], "regex": app, "action": "keep"}
        if app
        else {"source_labels": [meta(having or "")], "regex": ".+", "action": "keep"}
    )
    names = {
        "__meta_kubernetes_namespace": "namespace",
        "__meta_kubernetes_pod_name": "pod",
        "__meta_kubernetes_pod_node_name": "node",
    }
    if having:
        names |= {meta(JOB_LABEL): "training_job", meta(RUN_LABEL): "run"}
    discovery: dict[str, Any] = {"role": "pod"}
    if namespaces:
        discovery["namespaces"] = {"names": list(namespaces)}
    return {
        "job_name": job,
        **({"scrape_interval": interval} if interval else {}),
        "kubernetes_sd_configs": [discovery],
        "relabel_configs": [
            kept,
            {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": port, "action": "keep"},
            {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Succeeded|Failed", "action": "drop"},
            *({"source_labels": [source], "target_label": target} for source, target in names.items()),
        ],
    }


def prometheus(node_selector: Mapping[str, str]) -> list[Manifest]:
    """Prometheus with its rights to find pods. What it has measured goes with its pod."""
    config = json.dumps(scrape_config(), indent=2) + "\n"
    container = {
        "name": "prometheus",
        "image": PROMETHEUS_IMAGE,
        "args": [
            # JSON is YAML.
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            f"--storage.tsdb.retention.time={RETENTION}",
            f"--web.listen-address=0.0.0.0:{PROMETHEUS_PORT}",
        ],
        "ports": [{"name": "http", "containerPort": PROMETHEUS_PORT}],
        "readinessProbe": http_probe("/-/ready", PROMETHEUS_PORT, period=2),
        "securityContext": LOCKED_DOWN,
        "resources": resources("200m", "2Gi"),
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/prometheus"},
            {"name": "data", "mountPath": "/prometheus"},
        ],
    }
    pod: Manifest = {
        "serviceAccountName": "prometheus",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "fsGroup": 65534},
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "prometheus"}}, {"name": "data", "emptyDir": {}}],
        **({"nodeSelector": dict(node_selector)} if node_selector else {}),
    }
    rule = {"apiGroups": [""], "resources": ["pods", "nodes", "services"], "verbs": ["get", "list", "watch"]}
    rbac = "rbac.authorization.k8s.io"
    # Objects of the whole cluster share one name space with whatever else is installed there.
    cluster_wide = metadata("eks-fsdp-prometheus", "prometheus", namespaced=False)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("prometheus")},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": cluster_wide, "rules": [rule]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": cluster_wide,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": cluster_wide["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": SYSTEM_NAMESPACE}],
        },
        config_map("prometheus", "prometheus", {"prometheus.yml": config}),
        workload("Deployment", "prometheus", pod, annotations={"eksfsdp/config": digest(config)}),
        service("prometheus", {"http": PROMETHEUS_PORT}),
    ]


def dashboard() -> dict[str, Any]:
    """Grafana's board of a run: throughput and loss of the trainer above what the GPUs say."""

    def metric(field: str) -> str:
        return TRAINER_METRICS[field][0]

    panels = [
        ("Tokens per second", "short", metric("tokens_per_second"), "{{training_job}} {{run}}"),
        ("Loss", "short", metric("loss"), "{{training_job}} {{run}}"),
        ("Step time", "s", metric("step_seconds"), "{{training_job}} {{run}}"),
        ("Model FLOPs utilisation", "percentunit", metric("mfu"), "{{training_job}} {{run}}"),
        ("Tensor cores busy", "percentunit", "avg by (node) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE)", "{{node}}"),
        ("GPU memory in use", "mbytes", "max by (node) (DCGM_FI_DEV_FB_USED)", "{{node}}"),
        ("Power", "watt", "sum by (node) (DCGM_FI_DEV_POWER_USAGE)", "{{node}}"),
        ("Last XID error", "none", "max by (node, gpu) (DCGM_FI_DEV_XID_ERRORS)", "{{node}} GPU {{gpu}}"),
    ]
    return {
        "uid": "eks-fsdp-run",
        "title": "Training run",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": [
            {
                "id": index + 1,
                "type": "timeseries",
                "title": title,
                "gridPos": {"x": 12 * (index % 2), "y": 8 * (index // 2), "w": 12, "h": 8},
                "datasource": {"type": "prometheus", "uid": "prometheus"},
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                "targets": [{"refId": "A", "expr": expression, "legendFormat": legend}],
            }
            for index, (title, unit, expression, legend) in enumerate(panels)
        ],
    }


def grafana(node_selector: Mapping[str, str]) -> list[Manifest]:
    """Grafana with its data source and board; the administrator's password is in the Secret ``grafana``."""
    source = {
        "name": "Prometheus",
        "type": "prometheus",
        "uid": "prometheus",
        "url": f"http://prometheus.{SYSTEM_NAMESPACE}.svc:{PROMETHEUS_PORT}",
        "isDefault": True,
    }
    boards = "/var/lib/grafana-dashboards"
    folder = {"name": "eks-fsdp", "type": "file", "options": {"path": boards}}
    files = {
        "datasources.yaml": json.dumps({"apiVersion": 1, "datasources": [source]}, indent=2),
        "providers.yaml": json.dumps({"apiVersion": 1, "providers": [folder]}, indent=2),
        "run.json": json.dumps(dashboard(), indent=2),
    }
    environment = {
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    }
    password = {"secretKeyRef": {"name": "grafana", "key": "admin-password"}}
    provisioning = "/etc/grafana/provisioning"
    container = {
        "name": "grafana",
        "image": GRAFANA_IMAGE,
        "env": [
            {"name": "GF_SECURITY_ADMIN_PASSWORD", "valueFrom": password},
            *({"name": name, "value": value} for name, value in environment.items()),
        ],
        "ports": [{"name": "http", "containerPort": GRAFANA_PORT}],
        "readinessProbe": http_probe("/api/health", GRAFANA_PORT, period=5),
        "securityContext": LOCKED_DOWN,
        "resources": resources("100m", "512Mi"),
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/grafana"},
            {
                "name": "files",
                "mountPath": f"{provisioning}/datasources/datasources.yaml",
                "subPath": "datasources.yaml",
            },
            {"name": "files", "mountPath": f"{provisioning}/dashboards/providers.yaml", "subPath": "providers.yaml"},
            {"name": "files", "mountPath": f"{boards}/run.json", "subPath": "run.json"},
        ],
    }
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 472, "fsGroup": 472},
        "containers": [container],
        "volumes": [{"name": "files", "configMap": {"name": "grafana"}}, {"name": "data", "emptyDir": {}}],
        **({"nodeSelector": dict(node_selector)} if node_selector else {}),
    }
    return [
        config_map("grafana", "grafana", files),
        workload("Deployment", "grafana", pod, annotations={"eksfsdp/config": digest(*files.values())}),
        service("grafana", {"http": GRAFANA_PORT}),
    ]


@dataclass(frozen=True, kw_only=True)
class MonitoringArgs:
    """Inputs of `Monitoring`."""

    node_selector: Mapping[str, str]
    """Labels of the nodes for Prometheus and Grafana; empty: any without a taint."""
    taints: Sequence[TaintSettings] = ()
    """Taints of the GPU nodes beside ``nvidia.com/gpu``, of all groups together."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the system namespace and nodes to run on."""


class Monitoring(pulumi.ComponentResource):
    """GPU metrics, the trainer's metrics, and a board of both. Nothing of it is reachable from outside the cluster."""

    def __init__(self, name: str, args: MonitoringArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:monitoring:Monitoring", name, None, opts)
        password = declare(
            f"{name}-grafana-password",
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": metadata("grafana"),
                "type": "Opaque",
                "data": {"admin-password": pulumi.Output.secret(_random_password())},
            },
            # Drawn anew each time the program runs, and used the first time alone.
            pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on), ignore_changes=["data"]),
        )
        for app, manifests in {
            "dcgm-exporter": dcgm_exporter(args.taints),
            "prometheus": prometheus(args.node_selector),
            "grafana": grafana(args.node_selector),
        }.items():
            before: list[pulumi.Resource] = [*args.depends_on, *([password] if app == "grafana" else [])]
            for manifest in manifests:
                resource = declare(
                    f"{name}-{app}-{manifest['kind'].lower()}",
                    manifest,
                    pulumi.ResourceOptions(parent=self, depends_on=before),
                )
                # What pods are made of (accounts, rights, files) comes before the pods in each list.
                if manifest["kind"] not in ("Deployment", "DaemonSet"):
                    before = [*before, resource]
        self.register_outputs({})


def _random_password() -> str:
    """192 random bits, in base64 as a Secret's data are."""
    return base64.b64encode(secrets.token_urlsafe(24).encode()).decode()
