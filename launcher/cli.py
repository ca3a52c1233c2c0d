"""``eks-fsdp``: the command line. Each command imports what it needs when it runs, so that the help is quick."""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .errors import UserError
from .lazy import lazy_group
from .options import StackOption

app = typer.Typer(
    name="eks-fsdp",
    help="Train with FSDP on Amazon EKS: run, sweep, measure, clean up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(
    typer.Typer(
        cls=lazy_group("eks_fsdp.sandbox.commands:app"),
        help="The whole platform on this machine, with no AWS account.",
        rich_markup_mode=None,
    ),
    name="sandbox",
)
app.add_typer(
    typer.Typer(
        cls=lazy_group("eks_fsdp.launcher.image_cli:app"),
        help="The trainer's image: build it, push it, see whether it is there.",
        rich_markup_mode=None,
    ),
    name="image",
)

USER_ERROR, INTERRUPTED = 2, 130


class ScalingMode(StrEnum):
    """What is held equal over the points."""

    strong = "strong"
    weak = "weak"


class Backend(StrEnum):
    """torch.distributed's backend of a check."""

    nccl = "nccl"
    gloo = "gloo"


NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the jobs. [default: the stack's]")
]
PendingOption = Annotated[
    float,
    typer.Option(
        "--pending-timeout",
        metavar="SECONDS",
        help="Stop a job that has its nodes and is not placed by then, with why.",
    ),
]
QueueOption = Annotated[
    float | None,
    typer.Option(
        "--queue-timeout",
        metavar="SECONDS",
        help="Stop a job that is still in the queue by then, with why. [default: it may wait]",
    ),
]
SilentOption = Annotated[
    float,
    typer.Option("--silent-timeout", metavar="SECONDS", help="Stop a job that runs and reports no step for so long."),
]


@app.command()
def run(
    stack: StackOption = None,
    job: Annotated[str | None, typer.Option(help="Job of the stack to take. [default: its only one]")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes, in place of the job's.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, in place of the job's.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the job, such as trainer.seed=1. Repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for record and logs. [default: .out/STACK-run-TIME]")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit and leave; `stop` ends it.")] = False,
    queue_timeout: QueueOption = None,
    pending_timeout: PendingOption = 900,
    silent_timeout: SilentOption = 900,
) -> None:
    """Run one job and watch it.

    Example: eks-fsdp run -s p5-16 --nodes 2 --steps 50 --set trainer.micro_batch_size=2
    """
    from .run import RunRequest, run_job
    from .watch import Limits

    record = run_job(
        RunRequest(
            stack=_stack(stack),
            job=job,
            nodes=nodes,
            steps=steps,
            changes=tuple(set_ or ()),
            out=out,
            detach=detach,
            limits=Limits(queue=queue_timeout, pending=pending_timeout, silent=silent_timeout),
        )
    )
    if record is not None and record.condition != "Succeeded":
        raise typer.Exit(1)


@app.command()
def sweep(
    stack: StackOption = None,
    nodes: Annotated[str, typer.Option(metavar="N,N,…", help="Node counts.")] = "1,2,4",
    job: Annotated[
        str | None, typer.Option(help="Job of the stack to take as template. [default: its only one]")
    ] = None,
    mode: Annotated[ScalingMode, typer.Option(help="strong: equal global batch; weak: equal work per node.")] = (
        ScalingMode.strong
    ),
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, in place of the job's.")] = None,
    warmup: Annotated[int, typer.Option(min=0, help="First steps that do not count.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. [default: .out/STACK-sweep-TIME]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a sweep that is in the folder.")] = False,
    queue_timeout: QueueOption = None,
    pending_timeout: PendingOption = 900,
    silent_timeout: SilentOption = 900,
) -> None:
    """Run a job at several node counts and draw the scaling chart.

    Example: eks-fsdp sweep -s p5-16 --nodes 1,2,4,8,16 --steps 60
    """
    from . import report as reporting
    from .sweep import Request, Sweep
    from .watch import Limits

    request = Request(
        stack=_stack(stack),
        nodes=_numbers(nodes),
        job=job,
        mode=mode.value,
        steps=steps,
        warmup=warmup,
        out=out,
        overwrite=overwrite,
        limits=Limits(queue=queue_timeout, pending=pending_timeout, silent=silent_timeout),
    )
    made = reporting.make(Sweep(request).run())
    if not any(point.accepted for point in made.points):
        raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep.")],
) -> None:
    """Judge a sweep's records again and write table, JSON, CSV, HTML and PNG.

    Example: eks-fsdp report .out/demo
    """
    from . import report as reporting

    reporting.make(folder)


@app.command()
def preflight(
    stack: StackOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Ask AWS, read-only, what `pulumi up` of a stack would meet. Exit code 1 where something would fail.

    Example: eks-fsdp preflight -s p5-16
    """
    from .preflight import preflight as check

    if not check(_stack(stack), as_json=as_json):
        raise typer.Exit(1)


@app.command()
def capacity(
    type_: Annotated[str, typer.Option("--type", metavar="TYPE", help="Instance type.")] = "p5.48xlarge",
    nodes: Annotated[int, typer.Option(help="Instances, in one block.")] = 1,
    days: Annotated[int, typer.Option(help="Days: 1 to 14, then whole weeks up to 182.")] = 1,
    regions: Annotated[str, typer.Option(metavar="R,R,…", help="Regions to ask.")] = "us-west-2,us-east-1,us-east-2",
    choose: Annotated[
        str | None, typer.Option(metavar="ID", help="Row whose settings to print. [default: the soonest that fits]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Show Capacity Blocks for sale and own reservations, with the settings for one. Nothing is bought.

    Example: eks-fsdp capacity --type p5.48xlarge --nodes 16 --days 2 --regions us-west-2,us-east-1
    """
    from .capacity import capacity as look

    wanted = list(dict.fromkeys(region.strip() for region in regions.split(",") if region.strip()))
    if not wanted:
        raise UserError("--regions: none given; accepted: regions such as us-west-2,us-east-1")
    if not look(type_, nodes, days, wanted, chosen=choose, as_json=as_json):
        raise typer.Exit(1)


@app.command("check-nodes")
def check_nodes(
    stack: StackOption = None,
    group: Annotated[str | None, typer.Option(help="GPU group. [default: the stack's only one]")] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This node only. Repeatable. [default: all of the group]")
    ] = None,
    cordon: Annotated[
        bool, typer.Option("--cordon", help="Keep jobs off the nodes that are bad, and say on them why.")
    ] = False,
    backend: Annotated[
        Backend | None, typer.Option(help="What the ranks talk over. [default: gloo where all jobs of the stack do]")
    ] = None,
    pending_timeout: Annotated[
        float,
        typer.Option("--pending-timeout", metavar="SECONDS", help="Leave out nodes whose pod does not run by then."),
    ] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Test every node of a GPU group: devices, all-reduce alone, in all pairs, all together; name the bad ones.

    It takes whole nodes: those on which a job runs are left out. Exit code 1 where one is bad or was left out.

    Example: eks-fsdp check-nodes -s p5-16 --group p5 --cordon
    """
    from .nodecheck import CheckRequest
    from .nodecheck import check_nodes as check

    request = CheckRequest(
        stack=_stack(stack),
        group=group,
        backend=backend.value if backend else None,
        only=tuple(node or ()),
        cordon=cordon,
        pending=pending_timeout,
        as_json=as_json,
    )
    if not check(request):
        raise typer.Exit(1)


@app.command()
def status(stack: StackOption = None, namespace: NamespaceOption = None) -> None:
    """Show the cluster: nodes Ready against expected, jobs, and why pods wait.

    Example: eks-fsdp status -s p5-16
    """
    from .view import show_status

    show_status(_stack_if_any(stack), namespace)


@app.command()
def logs(
    job: Annotated[
        str | None, typer.Argument(help="Name of the job or of its PyTorchJob. [default: the newest]")
    ] = None,
    stack: StackOption = None,
    namespace: NamespaceOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends, over restarts too.")] = False,
    every: Annotated[bool, typer.Option("--all", help="All pods, each line with its pod's name.")] = False,
) -> None:
    """Show the log of a job's leader (rank 0), or of all its pods.

    Example: eks-fsdp logs -f llama
    """
    from .view import show_logs

    show_logs(_stack_if_any(stack), namespace, job, follow=follow, every=every)


@app.command()
def stop(
    job: Annotated[str, typer.Argument(help="Name of the job or of its PyTorchJob.")],
    stack: StackOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """End a job and delete its pods.

    Example: eks-fsdp stop llama
    """
    from .view import stop_job

    stop_job(_stack_if_any(stack), namespace, job)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything up at the end.")] = False,
    folder: Annotated[Path, typer.Option("--dir", help="The sandbox's folder.")] = Path(".sandbox"),
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path(".out/demo"),
) -> None:
    """Everything at once on this machine: sandbox, `pulumi up`, a job, a sweep, the chart, and away again.

    Example: eks-fsdp demo --keep
    """
    from .demo import Demo

    Demo(folder, out, keep=keep).run()


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--nodes: {text!r}; accepted: node counts from 1, such as 1,2,4") from None


def _stack(given: str | None) -> str:
    """The stack that was given, else the selected one. Raises `UserError`."""
    from .stack import find_checkout, selected_stack

    found = given or selected_stack(find_checkout())
    if found is None:
        raise UserError("no stack is selected: pass -s STACK, or `pulumi stack select STACK`")
    return found


def _stack_if_any(given: str | None) -> str | None:
    """The stack that was given, else None where KUBECONFIG says which cluster, else the selected one, if any."""
    from .stack import find_checkout, selected_stack

    if given or os.environ.get("KUBECONFIG"):
        return given
    return selected_stack(find_checkout())


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the job or sweep failed, 2 the user's error, 130 interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(prog_name="eks-fsdp", standalone_mode=False)
    except UserError as error:
        from .live import fail

        fail(str(error))
        code = USER_ERROR
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:  # noqa: BLE001
        code = _unexpected(error)
    if code == INTERRUPTED:
        sys.stderr.write("\ninterrupted\n")
    sys.exit(code if isinstance(code, int) else 0)


def _unexpected(error: Exception) -> int:
    """Usage errors as typer shows them, refusals in one line; what is left is a bug and keeps its traceback."""
    show = getattr(error, "show", None)
    if show is not None:
        show()
        return int(getattr(error, "exit_code", USER_ERROR))
    named = {type_.__name__ for type_ in type(error).__mro__}
    if "SettingsError" in named or "ApiError" in named:
        from .live import fail

        fail(str(error))
        return USER_ERROR
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("eks_fsdp"):
        from .live import fail

        fail(f"the package {error.name!r} is not installed: pip install 'eks-fsdp[launcher,sandbox]'")
        return USER_ERROR
    if isinstance(error, OSError) and error.strerror:
        from .live import fail

        fail(f"{error.filename or 'system'}: {error.strerror}")
        return USER_ERROR
    raise error


if __name__ == "__main__":
    main()
