"""The environment in which plain `pulumi`, `kubectl` and boto3 work on a sandbox, and the commands it puts on PATH."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eks_fsdp.spec.versions import PULUMI_KUBERNETES_VERSION

from . import aws_command
from .layout import ACCESS_KEY, SECRET_KEY, Layout

_AWS_SCRIPT = """#!/bin/sh
# The sandbox's stand-in of the AWS CLI: see aws_command.py.
exec {python} -I -S -c 'import runpy, sys; file, config, *rest = sys.argv[1:]; sys.exit(runpy.run_path(file)["main"](config, rest))' \\
  {file} {kubeconfig} "$@"
"""
_POLICY_SCRIPT = """#!/bin/sh
# pulumi-analyzer-policy-python [-virtualenv=FOLDER] ENGINE PACK, in the pack's folder.
python={python}
for argument do
  shift
  case $argument in
    -virtualenv=*) python=${{argument#*=}}/bin/python ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "$python" -u -m pulumi.policy "$@"
"""


def install_commands(layout: Layout, toolchain: Path) -> None:
    """Put pulumi, kubectl and the Python language host into the sandbox's bin folder, and the provider into its cache."""
    _link(layout.bin / "kubectl", toolchain / "kubectl")
    _own_copy(layout.bin / "pulumi", toolchain / "pulumi")
    plugin = layout.pulumi_home / "plugins" / f"resource-kubernetes-v{PULUMI_KUBERNETES_VERSION}"
    plugin.mkdir(parents=True, exist_ok=True)
    _link(plugin / "pulumi-resource-kubernetes", toolchain / "pulumi-resource-kubernetes")
    source = Path(__file__).absolute().parents[2]
    code = f"import sys; sys.path.insert(0, {str(source)!r}); from eks_fsdp.sandbox.language_host import main; main()"
    script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n'
    _script(layout.bin / "pulumi-language-python", script)
    _script(
        layout.bin / "aws",
        _AWS_SCRIPT.format(python=_q(sys.executable), file=_q(aws_command.__file__), kubeconfig=_q(layout.kubeconfig)),
    )
    # Engines up to 3.215 start Python policy packs by this command instead of asking the language host.
    _script(layout.bin / "pulumi-analyzer-policy-python", _POLICY_SCRIPT.format(python=shlex.quote(sys.executable)))


def _q(value: object) -> str:
    return shlex.quote(str(value))


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _own_copy(path: Path, source: Path) -> None:
    """A file of its own: the engine takes the language host that lies beside itself without a warning."""
    path.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), path)
    except OSError:
        shutil.copy2(source.resolve(), path)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target.resolve())


def user_environment(layout: Layout, ready: Mapping[str, Any], path: str | None = None) -> dict[str, str]:
    """What `eks-fsdp sandbox env` sets. ``ready``: the content of `Layout.ready_file`; ``path``: PATH before."""
    before = os.environ.get("PATH", "") if path is None else path
    # Not resolved: the folder of the virtual environment's own python, not of the one that it links to.
    interpreter = str(Path(sys.executable).parent)
    front = [str(layout.bin), interpreter]
    rest = [part for part in before.split(os.pathsep) if part and part not in front]
    return {
        "PATH": os.pathsep.join([*front, *rest]),
        "PULUMI_HOME": str(layout.pulumi_home),
        "PULUMI_BACKEND_URL": f"file://{layout.pulumi_state}",
        "PULUMI_CONFIG_PASSPHRASE": "",
        "PULUMI_DEBUG_PROVIDERS": f"aws:{ready['aws_port']},eks:{ready['eks_port']}",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "AWS_ENDPOINT_URL": str(ready["account_url"]),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": str(ready["region"]),
        "AWS_DEFAULT_REGION": str(ready["region"]),
        "AWS_EC2_METADATA_DISABLED": "true",
        "KUBECONFIG": str(layout.kubeconfig),
        "EKS_FSDP_SANDBOX": str(layout.root),
    }


def exports(environment: Mapping[str, str]) -> str:
    """Lines that a shell evaluates."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
