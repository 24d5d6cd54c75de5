"""What holds for every test: one thread a worker, no network, and as much time as an example of hypothesis needs."""

import os

# Before anything imports torch. Two workers with two threads each would fight over two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings  # noqa: E402

# A busy machine is no failure. In CI the examples are the same every time, so that a red run can be repeated.
settings.register_profile("leftward", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("leftward")
