"""Resolve the package with all its extras, as pip would today, and print constraints.txt (`make constraints`)."""

import json
import re
import subprocess
import sys

PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
report = json.loads(subprocess.run([*PIP, ".[all]"], check=True, stdout=subprocess.PIPE).stdout)
print("# Every version that was tested, which `make` and environment.yml install; `make constraints` resolves them.")
for package in sorted(report["install"], key=lambda package: package["metadata"]["name"].lower()):
    name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
    # The rest of a version ("+cpu") names a build; CUDA's own wheels differ between machines, and torch pins them.
    if not package["requested"] and not name.startswith(("nvidia-", "cuda-")):
        print(f"{name}=={package['metadata']['version'].partition('+')[0]}")
