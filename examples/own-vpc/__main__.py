"""The whole platform in a VPC that is there already."""

from datetime import UTC, datetime

import pulumi

from eks_fsdp.components.platform import TrainingPlatform, TrainingPlatformArgs
from eks_fsdp.spec.settings import Settings

config = pulumi.Config()
settings = Settings.parse(
    {
        "owner": "ml-research",
        # Who reaches the API from outside; `caller_address` finds out where this program runs, if it is to be that.
        "cluster": {"api_access": {"caller_ip": "none", "allowed_cidrs": ["203.0.113.0/24"]}},
        "network": {
            "existing": {
                "vpc_id": config.require("vpc_id"),
                "private_subnets": {
                    "us-west-2a": config.require("private_subnet_a"),
                    "us-west-2b": config.require("private_subnet_b"),
                },
            },
        },
        "gpu_nodes": [
            {"name": "p4de", "instance_type": "p4de.24xlarge", "zone": "us-west-2a", "desired": 0, "max": 4},
        ],
        "monitoring": {"mode": "none"},
        "training_operator": {"manifests": config.get("operator_manifests")}
        if config.get("operator_manifests")
        else {},
        "queue": {"mode": "none"},
    }
)
platform = TrainingPlatform(
    "platform", TrainingPlatformArgs(settings=settings, stack=pulumi.get_stack(), now=datetime.now(UTC))
)
for name, value in platform.outputs.items():
    pulumi.export(name, value)
