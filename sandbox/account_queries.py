"""What only the launcher asks of the account: one place that routes it."""

from __future__ import annotations

import moto.iam.urls
import moto.servicequotas.urls

from .account_iam import SandboxIAMResponse
from .account_quotas import SandboxQuotasResponse


def route_queries() -> None:
    """Route moto's IAM and Service Quotas to the extended classes."""
    moto.iam.urls.url_paths["{0}/$"] = SandboxIAMResponse.dispatch
    moto.servicequotas.urls.url_paths["{0}/$"] = SandboxQuotasResponse.dispatch
