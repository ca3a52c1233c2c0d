"""Runs one Pulumi program in a fresh interpreter. Needs nothing but the SDK: the interpreter is the program's own.

What to run comes as JSON in the environment variable EKS_FSDP_PROGRAM (see `language_host`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import runpy
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

TOLD = 32
ENGINE_IS_GONE = "resource monitor shut down"


def main() -> int:
    """The exit code: 0, or 32 where the error has been shown."""
    told = json.loads(os.environ.pop("EKS_FSDP_PROGRAM"))
    try:
        import pulumi
        import pulumi.runtime
    except ImportError as error:
        print(f"the Pulumi SDK is not installed in {sys.prefix}: {error}", file=sys.stderr)
        return 1
    pulumi.runtime.set_all_config(told["config"], told["secrets"])
    pulumi.runtime.configure(
        pulumi.runtime.Settings(
            project=told["project"],
            stack=told["stack"],
            parallel=told["parallel"],
            engine=told["engine"],
            monitor=told["monitor"],
            dry_run=told["dry_run"],
            organization=told["organization"],
            root_directory=told["root_directory"],
        )
    )
    program = told["program"]
    if os.path.isdir(program) and not os.path.exists(os.path.join(program, "__main__.py")):
        pulumi.log.error(f"{program} has no __main__.py")
        return TOLD
    sys.argv = [program, *told["args"]]
    os.chdir(told["pwd"])
    # A program ends with futures that nobody waited for whenever one of its resources fails: that is no news.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    workers = ThreadPoolExecutor(max_workers=4 * max(told["parallel"], 1))
    loop.set_default_executor(workers)

    def run() -> None:
        runpy.run_path(program, run_name="__main__")

    try:
        loop.run_until_complete(pulumi.runtime.run_in_stack(run))
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return TOLD
    except Exception as error:  # noqa: BLE001 - whatever the program raises is shown as its own error
        # The engine ended it because a resource failed, and has told of that.
        if ENGINE_IS_GONE not in str(error):
            pulumi.log.error(f"the program failed:\n{user_traceback(program)}")
        return TOLD
    finally:
        workers.shutdown(wait=True)
        loop.close()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def user_traceback(program: str) -> str:
    """The current exception's traceback from the program's first line on."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    start = os.path.join(os.path.abspath(program), "") if os.path.isdir(program) else os.path.abspath(program)
    for index, frame in enumerate(frames):
        if os.path.abspath(frame.filename).startswith(start):
            return traceback.format_exc(limit=index - len(frames))
    return traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
