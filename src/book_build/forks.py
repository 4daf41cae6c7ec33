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
        before = dict(os.environ)
        os.environ.update(variables)
        multiprocessing.forkserver.ensure_running()
        os.environ.clear()
        os.environ.update(before)


class Fork(CONTEXT.Process):
    """A process with the names of subprocess too, which Jupyter calls."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def start(target: Callable[..., None], *arguments: Any) -> Fork:
    process = Fork(target=target, args=arguments)
    process.start()
    return process


class Manager(AsyncKernelManager):
    """Starts a kernel as a fork."""

    async def _async_launch_kernel(self, kernel_cmd: list[str], *, env: Mapping[str, str], cwd: str, **_: Any) -> None:
        provisioner = self.provisioner
        provisioner.process = start(kernel, kernel_cmd, dict(env), cwd)
        # The new process makes itself the leader of a group; until then, signals for the group reach it alone.
        provisioner.pid = provisioner.pgid = provisioner.process.pid
        provisioner.cwd = cwd
        self._reconcile_connection_info(provisioner.connection_info)


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


def kernel(command: Sequence[str], variables: Mapping[str, str], folder: str) -> None:
    """Be the kernel that `command` would start: python -m ipykernel_launcher OPTIONS."""
    enter(variables, folder)
    from ipykernel.kernelapp import IPKernelApp

    # Without a parent's handle it prints how to connect to it.
    sys.argv = ["ipykernel_launcher", *command[command.index("-f") :], f"--IPKernelApp.parent_handle={os.getppid()}"]
    IPKernelApp.launch_instance()


def make_page(module: str, out: str, variables: Mapping[str, str], folder: str) -> None:
    """Write a page, and what belongs to it, to and beside the file `out`: what the module's `main` does."""
    enter(variables, folder)
    importlib.import_module(module).main(Path(out))
