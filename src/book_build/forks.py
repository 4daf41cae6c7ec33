"""Processes forked from one that has already imported what chapters import, which is most of a kernel's start. Where
forking is not safe (not on Linux), each starts anew."""

import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from jupyter_client import AsyncKernelManager

CONTEXT = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
PRELOADED = [
    __name__,
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "pandas",
    "pydantic.dataclasses",
    "scipy.stats",
    "sklearn.cluster",
    "torch",
    "transformer_lens.model_bridge",
]


def start_server(variables: Mapping[str, str]) -> None:
    """Start the process that all others are forked from, with these variables, which libraries read at import."""
    if CONTEXT.get_start_method() == "forkserver":
        CONTEXT.set_forkserver_preload(PRELOADED)
        with mock.patch.dict(os.environ, variables):
            multiprocessing.forkserver.ensure_running()


def start(target: Callable[..., None], *arguments: Any) -> multiprocessing.Process:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


class Manager(AsyncKernelManager):
    """Starts a kernel as a fork, and kills it."""

    async def start_kernel(self, *, extra_arguments: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self.write_connection_file()
        self.process = start(kernel, ["-f", self.connection_file, *extra_arguments], dict(env), cwd)

    async def is_alive(self) -> bool:
        return self.process.is_alive()

    _async_is_alive = is_alive  # what Jupyter's client calls

    async def shutdown_kernel(self, now: bool = True) -> None:
        self.process.kill()
        self.process.join()


# ---- in the new process ----------------------------------------------------------------------------------------------


def enter(variables: Mapping[str, str], folder: str) -> None:
    """Take the place of a new interpreter in `folder`, which ends with the process that asked for it."""
    os.setsid()
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)


def end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def kernel(options: Sequence[str], variables: Mapping[str, str], folder: str) -> None:
    """Be the kernel that `python -m ipykernel_launcher OPTIONS` would start."""
    enter(variables, folder)
    from ipykernel.kernelapp import IPKernelApp

    # Without a parent's handle it prints how to connect to it.
    sys.argv = ["ipykernel_launcher", *options, f"--IPKernelApp.parent_handle={os.getppid()}"]
    IPKernelApp.launch_instance()


def make_page(module: str, out: str, variables: Mapping[str, str], folder: str) -> None:
    """Write to the file `out` the page that the module's `main` returns. It writes beside it what belongs to it."""
    enter(variables, folder)
    page = importlib.import_module(module).main(Path(out).parent)
    Path(out).write_text(page, encoding="utf-8")
