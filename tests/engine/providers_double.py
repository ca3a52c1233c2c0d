"""The stand-in account and providers with a machine room that is only remembered, as a process of its own.

Prints the ports as JSON, and lives until its standard input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))


def main() -> None:
    from machine_room_double import FakeMachineRoom  # type: ignore[import-not-found]

    from eks_fsdp.sandbox.account import Account
    from eks_fsdp.sandbox.cloud.provider import AwsProvider, serve
    from eks_fsdp.sandbox.eks_provider import EksProvider, EksServer
    from eks_fsdp.sandbox.layout import ACCOUNT_ID, REGION

    room = FakeMachineRoom()
    account = Account(room, cluster_port=6443)
    url = account.start()
    server, aws = serve(AwsProvider(account.client, ACCOUNT_ID, REGION))
    eks = EksServer(EksProvider(account.cluster_token))
    ports = {"account_url": url, "aws_port": aws, "eks_port": eks.start(), "region": REGION}
    print(json.dumps(ports), flush=True)
    for line in sys.stdin:
        if line.strip() == "groups":
            print(json.dumps(room.groups), flush=True)
    eks.stop()
    server.stop(0.5).wait(2)
    account.stop()


if __name__ == "__main__":
    main()
