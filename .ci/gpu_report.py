"""What `.ci/gpu.sh` compares: the losses of two short trainings, or what the chapters print with what is stored.

python .ci/gpu_report.py losses LOG OTHER_LOG
python .ci/gpu_report.py notebooks [NOTEBOOK ...]
"""

import difflib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

NEAR = 0.02  # nats between bf16 and float32 after a few steps: a hundred times what orders of addition make


def losses(*logs: str) -> int:
    """Print the losses of both runs at each snapshot. Returns 1 if one of the pairs differs by more than NEAR."""
    runs = [[json.loads(line) for line in Path(log).read_text().splitlines()] for log in logs]
    print(" and ".join(f"{header['hardware']['device']}, {header['training']['precision']}" for header, *_ in runs))
    largest = 0.0
    for row, other in zip(runs[0][1:], runs[1][1:], strict=True):
        pairs = [(row[name], other[name]) for name in ("train", "held_out") if row[name] is not None]
        print(f"step {row['step']:4}: " + ", ".join(f"{a:.4f} and {b:.4f}" for a, b in pairs))
        largest = max(largest, *(abs(a - b) for a, b in pairs))
    print(f"largest difference: {largest:.4f} nats, at most {NEAR} expected")
    return int(not largest <= NEAR)


def printed(cell) -> str:
    """Return what a cell printed or displayed as text."""
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(parts)


def differences(root: Path) -> Iterator[str]:
    """Yield the lines in which compared cells of chapters that ran differ from what is stored, and changed verdicts."""
    import nbformat

    from transformer_circuits import build
    from transformer_circuits.claims import ledger, show

    store, verdicts = build.Store(root), {}
    for path in build.notebooks(root):
        if (ran := build.executed(store, path)) is None:
            continue
        verdicts |= {record.id: record.verdict for record in show.records_in(ran)}
        for cell, now in zip(build.code_cells(nbformat.read(path, as_version=4)), build.code_cells(ran), strict=True):
            if build.CHECKED in cell.metadata.get("tags", []) and printed(cell) != printed(now):
                yield f"\n{path.name}, cell {cell.id}"
                before, after = printed(cell).splitlines(), printed(now).splitlines()
                yield from (f"  {line}" for line in difflib.ndiff(before, after) if line[0] in "-+")
    for claim, before, after in ledger.changed(verdicts, root / "book" / "verdicts.yml"):
        if claim in verdicts:
            yield f"{claim}: {before}, now {after}"


def notebooks(*chosen: str) -> int:
    """Run the chapters, six at a time, and print what differs. Returns 1 if one of them failed."""
    from transformer_circuits import build, paths

    build.WORKERS, build.WORKING = 6, threading.Semaphore(6)  # a GPU's machine has the memory
    status = build.main(["--run", *chosen])
    print("\n".join(differences(paths.ROOT)))
    return status


if __name__ == "__main__":
    sys.exit({"losses": losses, "notebooks": notebooks}[sys.argv[1]](*sys.argv[2:]))
