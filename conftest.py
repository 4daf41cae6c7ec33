"""What holds for all tests. `pytest --nbval notebooks/05_copying.ipynb` is plain nbval: it runs the chapter and
compares what it prints.

`make test` compares what the build got, so that no chapter runs twice: see tests/notebooks/test_outputs.py.
"""

import os

# Before torch is imported, here and in the programs that tests start: threads that wait for one another on a busy
# machine take many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")  # nbval would compare progress bars
