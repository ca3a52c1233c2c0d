"""Docker's part of `image build`: sign in to ECR, build, push."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eks_fsdp.spec.names import IMAGE_BASE_VARIABLE, IMAGE_DOCKERFILE

from .errors import UserError

PLATFORM = "linux/amd64"
"""Of the GPU instances: on an ARM laptop Docker would build for its own."""
OTHER_WAY = "or image.codebuild: true, `pulumi up` and --with codebuild"
CHECK_SECONDS = 30.0
END_SECONDS = 10.0


def check_docker() -> None:
    """Raises `UserError` where there is no Docker, or its daemon does not answer."""
    _docker(["version", "--format", "{{.Server.Version}}"], "the daemon does not answer")


def sign_in(ecr: Any, registry: str) -> None:
    """Sign Docker in to an ECR registry for twelve hours. The password goes through a pipe: a command line is public."""
    token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(token).decode().partition(":")
    _docker(["login", "--username", user, "--password-stdin", registry], f"no sign-in to {registry}", password)


def build_and_push(folder: Path, image: str, base: str, log: Path, on_line: Callable[[str], None]) -> None:
    """Build the files in ``folder`` as ``image`` and push it. Raises `UserError`."""
    build = ["build", "--platform", PLATFORM, "--progress", "plain", "--file", str(folder / IMAGE_DOCKERFILE)]
    build += ["--build-arg", f"{IMAGE_BASE_VARIABLE}={base}", "--tag", image, str(folder)]
    log.write_text("")
    code, last = _follow(build, log, on_line)
    if code:
        raise UserError(f"docker build failed: {last}; all of it is in {log}")
    code, last = _follow(["push", image], log, on_line)
    if code:
        denied = "denied" in last.lower() or "not authorized" in last.lower()
        needed = "; your credentials need ecr:PutImage and the layer uploads on this repository" if denied else ""
        raise UserError(f"docker push of {image} {'was denied' if denied else 'failed'}: {last}{needed}")


def _docker(arguments: Sequence[str], problem: str, given: str | None = None) -> None:
    try:
        done = subprocess.run(
            ["docker", *arguments], input=given, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
        )
    except FileNotFoundError:
        raise UserError(f"docker: not on PATH; install Docker, {OTHER_WAY}") from None
    except OSError as error:
        raise UserError(f"docker: cannot be run: {error.strerror}; install Docker, {OTHER_WAY}") from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"docker: {problem}: no answer within {CHECK_SECONDS:.0f} s; start Docker, {OTHER_WAY}"
        ) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(f"docker: {problem}: {lines[-1] if lines else 'no message'}; start Docker, {OTHER_WAY}")


def _follow(arguments: Sequence[str], log: Path, on_line: Callable[[str], None]) -> tuple[int, str]:
    """Run Docker, keep what it prints in ``log``; its exit code and last line."""
    last = "no message"
    with (
        log.open("a") as file,
        subprocess.Popen(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
            # The terminal's Ctrl-C reaches the launcher alone, which ends Docker below.
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                if line.strip():
                    last = line.strip()
                    on_line(last)
            return process.wait(), last
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
