"""The policy pack on the real engine: stacks that break its rules are refused, each by the rule that it breaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from eks_fsdp.policies.pack import RULES

from .conftest import POLICIES, Sandbox

pytestmark = pytest.mark.engine
RESOURCES = """
import base64
import pulumi, pulumi_aws as aws, pulumi_kubernetes as k8s

vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")
subnet = aws.ec2.Subnet("s", vpc_id=vpc.id, cidr_block="10.0.0.0/24", map_public_ip_on_launch=True)
group = aws.ec2.SecurityGroup("group", vpc_id=vpc.id)
aws.vpc.SecurityGroupIngressRule("world", security_group_id=group.id, ip_protocol="-1", cidr_ipv4="0.0.0.0/0")
token = base64.b64encode(b"#!/bin/sh\\nexport HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz1234").decode()
template = aws.ec2.LaunchTemplate("template", instance_type="g5.8xlarge", user_data=token)
nodes = aws.eks.NodeGroup(
    "nodes", cluster_name="c", node_role_arn="arn:aws:iam::123456789012:role/r", subnet_ids=[subnet.id],
    scaling_config={"min_size": 0, "desired_size": 0, "max_size": 1},
    launch_template={"id": template.id, "version": template.latest_version.apply(str)},
)
there = pulumi.ResourceOptions(provider=k8s.Provider("rendered", render_yaml_to_directory="rendered"))
k8s.core.v1.Service("balancer", spec={"type": "LoadBalancer", "ports": [{"port": 80}]}, opts=there)
env = [{"name": "EKS_FSDP_TRANSPORT", "value": "gloo"}]
k8s.core.v1.Pod("pod", spec={"containers": [{"name": "a", "image": "trainer:latest", "env": env}]}, opts=there)
"""
STACK = """
import pulumi, pulumi_aws as aws, pulumi_kubernetes as k8s

vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")
subnet = aws.ec2.Subnet("s", vpc_id=vpc.id, cidr_block="10.0.0.0/24")
group = aws.ec2.SecurityGroup("group", vpc_id=vpc.id)
aws.vpc.SecurityGroupIngressRule("in", security_group_id=group.id, ip_protocol="-1", referenced_security_group_id=group.id)
template = aws.ec2.LaunchTemplate(
    "template", instance_type="p4de.24xlarge", metadata_options={"http_tokens": "required"},
    block_device_mappings=[{"device_name": "/dev/xvda", "ebs": {"encrypted": "true"}}],
    network_interfaces=[
        {"interface_type": "efa" if card == 0 else "efa-only", "network_card_index": card, "device_index": min(card, 1),
         "security_groups": [group.id]}
        for card in range(4)
    ],
)
nodes = aws.eks.NodeGroup(
    "nodes", cluster_name="c", node_role_arn="arn:aws:iam::123456789012:role/r", subnet_ids=[subnet.id],
    scaling_config={"min_size": 0, "desired_size": 0, "max_size": 1},
    launch_template={"id": template.id, "version": template.latest_version.apply(str)},
    tags={"eksfsdp:owner": "me", "eksfsdp:expiry": "never"}, labels={"pool": "gpu"},
)
there = pulumi.ResourceOptions(provider=k8s.Provider("rendered", render_yaml_to_directory="rendered"))
asks = {"limits": {"nvidia.com/gpu": "8"}}
pod = {"nodeSelector": {"pool": "gpu"}, "containers": [{"name": "a", "image": "trainer:1", "resources": asks}]}
k8s.apps.v1.Deployment(
    "trainer", opts=there,
    spec={"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}},
)
"""


@pytest.mark.parametrize(
    ("program", "rules"),
    [
        (
            RESOURCES,
            {
                "no-public-address": "s: mapPublicIpOnLaunch",
                "not-open-to-the-world": "world: cidrIpv4",
                "imdsv2": "template: metadataOptions.httpTokens",
                "encrypted": "template: blockDeviceMappings",
                "no-tokens": "template: userData holds a Hugging Face token",
                "owner-and-expiry": "nodes: tag eksfsdp:owner",
                "pinned-images": "pod: spec.containers[0].image 'trainer:latest'",
                "no-load-balancer": "balancer: spec.type",
                "no-gloo": "pod: spec.containers[0].env",
            },
        ),
        (
            STACK,
            {
                "efa-group-open-to-itself": "template: networkInterfaces[3] (EFA)",
                "gpu-pods-ask-for-efa": "trainer: spec.template.spec asks for nvidia.com/gpu",
            },
        ),
    ],
    ids=["rules-on-a-resource", "rules-on-a-stack"],
)
def test_what_breaks_a_rule_is_refused(sandbox: Sandbox, tmp_path: Path, program: str, rules: dict[str, str]) -> None:
    runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
    (tmp_path / "Pulumi.yaml").write_text(json.dumps({"name": "broken", "runtime": runtime}))
    (tmp_path / "__main__.py").write_text(program)
    # The provider that renders objects into a folder wants no cluster.
    backend = {"PULUMI_BACKEND_URL": f"file://{tmp_path}", "KUBECONFIG": ""}
    command = ("pulumi", "--non-interactive", "--color=never", "-s", "dev")
    sandbox.run(*command[:3], "stack", "init", "dev", cwd=tmp_path, more=backend)
    told = sandbox.run(*command, "preview", "--policy-pack", str(POLICIES), cwd=tmp_path, more=backend, fails=True)
    for rule, words in rules.items():
        assert f"[mandatory]  {rule} " in told, told
        assert words in told, told


def test_every_rule_was_broken_above() -> None:
    (mark,) = (m for m in test_what_breaks_a_rule_is_refused.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
    assert {rule for _, rules in mark.args[1] for rule in rules} == {rule.name for rule in RULES}
