"""The command line: quick help, one clear line for a user's error, and a clean end when interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eks_fsdp.launcher import demo, processes
from eks_fsdp.launcher.demo import Demo, exports
from eks_fsdp.launcher.errors import WaitError

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-m", "eks_fsdp.launcher.cli"]
COMMANDS = ("run", "sweep", "report", "preflight", "capacity", "check-nodes", "status", "logs", "stop", "demo")
HEAVY = ("torch", "pulumi", "kubernetes", "matplotlib", "plotly", "pydantic", "boto3", "grpc", "eks_fsdp.sandbox")


def eks_fsdp(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    return subprocess.run([*CLI, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from eks_fsdp.launcher import cli; sys.argv = ['eks-fsdp', '--help']\n"
        "try: cli.main()\nexcept SystemExit as end: code = end.code\n"
        f"print('LOADED', [m for m in {HEAVY!r} if m in sys.modules], code)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        after = os.times()
        # Of the CPU, not of the clock: other work on this machine does not count.
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
        assert done.stdout.splitlines()[-1] == "LOADED [] 0"
    assert min(seconds) < 0.5, seconds
    for command in (*COMMANDS, "sandbox"):
        assert command in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    done = eks_fsdp(command, "--help")
    assert done.returncode == 0
    assert f"Example: eks-fsdp {command}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["swep"], "No such command 'swep'. Did you mean 'sweep'?"),
        (["sweep", "-s", "x", "--nodes", "1,b"], "--nodes: '1,b'; accepted: node counts from 1, such as 1,2,4"),
        (["sweep", "--mode", "odd"], "'odd' is not one of"),
        (["capacity", "--days", "15"], "--days 15 days; accepted: 1 to 14, then whole weeks up to 182, such as 14"),
        (["capacity", "--regions", ","], "--regions: none given"),
        (["preflight", "-s", "no-such-stack"], "stack 'no-such-stack'"),
        (["check-nodes", "--backend", "mpi"], "'mpi' is not one of"),
        (["report", "/does/not/exist"], "/does/not/exist: no sweep.json here"),
        (["run", "-s", "no-such-stack"], "stack 'no-such-stack'"),
        (["logs"], "kubeconfig"),
        (["stop"], "Missing argument"),
    ],
)
def test_a_users_error_is_one_clear_line(arguments: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: eks-fsdp\nruntime: python\n")
    broken = tmp_path / "kubeconfig"
    broken.write_text("no kubeconfig")
    done = eks_fsdp(*arguments, cwd=tmp_path, KUBECONFIG=str(broken))
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_outside_a_checkout_the_user_is_told_so(tmp_path: Path) -> None:
    """The installed package lies in no checkout; here the search is made to end at the file system's root."""
    (tmp_path / "Pulumi.yaml").write_text("name: another\nruntime: python\n")
    program = (
        "import sys; from eks_fsdp.launcher import cli, stack; stack.__file__ = '/x/y/stack.py'\n"
        "sys.argv = ['eks-fsdp', 'sweep', '-s', 'a']; cli.main()"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no Pulumi.yaml of project 'eks-fsdp' here or above" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_without_a_traceback(number: int) -> None:
    program = (
        "import sys, time; from eks_fsdp.launcher import cli, report\n"
        "report.make = lambda folder: (print('ready', flush=True), time.sleep(30))\n"
        "sys.argv = ['eks-fsdp', 'report', 'x']; cli.main()"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "\ninterrupted\n"


def test_a_demo_leaves_a_folder_that_is_no_sandboxs(tmp_path: Path) -> None:
    (tmp_path / "thesis").touch()
    done = eks_fsdp("demo", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert "is not empty and no sandbox's folder" in done.stderr
    assert (tmp_path / "thesis").exists()


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: eks-fsdp\nruntime: python\n")
    for command in ("run", "sweep"):
        assert eks_fsdp(command, "-s", "absent", "--out", "new", cwd=tmp_path).returncode == 2
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("content", "expected"), [("{}", "name: Field required"), ("{", "not JSON"), ("[]", "valid dict")]
)
def test_a_broken_record_is_named(content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(content)
    done = eks_fsdp("report", str(tmp_path))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"{tmp_path / 'sweep.json'}: " in done.stderr
    assert expected in done.stderr


def test_exports_of_a_shell_script_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    script = "# comment\nexport A='b c'\nexport PATH=/x/bin:$PATH\nexport EMPTY=\"\"\n"
    assert exports(script) == {"A": "b c", "PATH": "/x/bin:/usr/bin", "EMPTY": ""}


def test_a_demos_folders_are_those_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = Demo(Path("box"), Path("out"), keep=False)
    spawned = shown._spawn([sys.executable, "-c", "import os; print(os.getcwd())"])
    assert spawned.communicate(timeout=60)[0] == f"{tmp_path}\n"
    assert shown._folder == tmp_path / "box"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "scaling.json").write_text("{}")
    with pytest.raises(ValueError, match="SweepReport"):
        shown._check_points()


def test_a_command_of_the_demo_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Demo(Path("box"), Path("out"), keep=False)
    # Fixtures of other tests keep processes of their own.
    before = set(processes.descendants(os.getpid()))
    with pytest.raises(WaitError, match="waited 0 s for: pulumi stack init"):
        shown._ask("pulumi stack init", [sys.executable, "-c", "import time; time.sleep(60)"], 0.1)
    monkeypatch.setattr(demo, "INTERRUPT_SECONDS", 0.1)
    monkeypatch.setattr(Demo, "_me", [sys.executable, "-c", "import time; time.sleep(60)"])
    shown._down()
    assert set(processes.descendants(os.getpid())) <= before
