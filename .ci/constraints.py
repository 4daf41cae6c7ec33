"""Resolve the package with all its extras from nothing, as pip would install it today, and print constraints.txt (`make constraints`)."""

import json
import re
import subprocess
import sys

PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
MACHINE = ("nvidia-", "cuda-")  # CUDA's own wheels: torch pins them itself, and they differ between machines


def pins(report: dict) -> list[str]:
    """Return the sorted pins of pip's report, without the project itself and the "+cpu" of a build."""
    found = {
        re.sub(r"[-_.]+", "-", i["metadata"]["name"]).lower(): i["metadata"]["version"]
        for i in report["install"]
        if not i["requested"]
    }
    return [f"{name}=={found[name].partition('+')[0]}" for name in sorted(found) if not name.startswith(MACHINE)]


if __name__ == "__main__":
    report = subprocess.run([*PIP, ".[book,test,train]"], check=True, stdout=subprocess.PIPE).stdout
    print(
        "# Every version that was tested: `make` and environment.yml install these.",
        *pins(json.loads(report)),
        sep="\n",
    )
