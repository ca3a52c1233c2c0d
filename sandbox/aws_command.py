"""The `aws` on a sandbox's PATH: `aws eks get-token` against the stand-in account, and nothing else of its own.

Kubeconfigs of EKS clusters sign in by that command. This one gives the token of the stand-in cluster's administrator, for
which AWS would sign a request; every other command goes to the AWS CLI further along the PATH, where there is one.
It is started for each sign-in, so it imports next to nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time

LIFETIME_S = 840
"""As long as a token of EKS is used: its 15 minutes, less one."""


def main(kubeconfig: str, arguments: list[str]) -> int:
    """Run. ``kubeconfig``: the file of the live cluster. Returns the exit status."""
    words = [word for word in arguments if not word.startswith("-")]
    if not ("eks" in words and words[words.index("eks") :][1:2] == ["get-token"]):
        return _other(arguments)
    name = arguments[arguments.index("--cluster-name") + 1] if "--cluster-name" in arguments[:-1] else ""
    if not name:
        return _refuse("the following arguments are required: --cluster-name")
    try:
        with open(kubeconfig) as file:
            config = json.load(file)
    except OSError:
        return _refuse(f"no cluster is there, so there is none called {name!r}")
    if config["current-context"] != name:
        return _refuse(f"there is no cluster {name!r}; there is {config['current-context']!r}")
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + LIFETIME_S))
    status = {"expirationTimestamp": expires, "token": config["users"][0]["user"]["token"]}
    credential = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "spec": {}}
    print(json.dumps({**credential, "status": status}))
    return 0


def _other(arguments: list[str]) -> int:
    """Hand over to the AWS CLI, which the sandbox's environment points at the stand-in account too."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, "aws")
        if os.access(path, os.X_OK) and not _is_ours(path):
            os.execv(path, [path, *arguments])
    return _refuse(
        "this is the sandbox's stand-in of the AWS CLI: it knows `aws eks get-token` alone. "
        "Install the AWS CLI, or use boto3: both talk to the stand-in account here."
    )


def _is_ours(path: str) -> bool:
    """Whether ``path`` is this command again, of this sandbox or of another."""
    with open(path, "rb") as file:
        return b"aws_command" in file.read(4096)


def _refuse(message: str) -> int:
    print(f"aws (sandbox): {message}", file=sys.stderr)
    return 2
