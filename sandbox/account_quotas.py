"""Service Quotas of the stand-in account: the vCPU quotas of EC2, which moto lacks."""

from __future__ import annotations

import json

from moto.core.responses import ActionResult
from moto.servicequotas.responses import ServiceQuotasResponse

from eks_fsdp.spec.quotas import QUOTAS

from .account_errors import Refusal

VALUES = {quota.code: 3840.0 if quota.families.startswith("p") else 1152.0 for quota in QUOTAS}
"""vCPUs by quota: twenty p5.48xlarge, and as much of the others as a middling account has."""


class SandboxQuotasResponse(ServiceQuotasResponse):
    """moto's Service Quotas with live values for EC2."""

    def get_service_quota(self) -> str | ActionResult:  # type: ignore[override]
        """GetServiceQuota."""
        asked = json.loads(self.body)
        if asked.get("ServiceCode") != "ec2":
            return super().get_service_quota()
        found = next((quota for quota in QUOTAS if quota.code == asked.get("QuotaCode")), None)
        if found is None:
            raise Refusal("NoSuchResourceException", "The request failed because the specified quota does not exist.")
        arn = f"arn:aws:servicequotas:{self.region}:{self.current_account}:ec2/{found.code}"
        quota = {
            "ServiceCode": "ec2",
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": arn,
            "QuotaCode": found.code,
            "QuotaName": found.name,
            "Value": VALUES[found.code],
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
        return json.dumps({"Quota": quota})
